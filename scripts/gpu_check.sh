#!/usr/bin/env bash
# Checks the CUDA kernels on an NVIDIA GPU and measures them against a device-to-device copy.
# Needs nvcc and a GPU; neither TensorFlow nor Horovod nor Python.
#   scripts/gpu_check.sh                 build, test, measure
#   scripts/gpu_check.sh --tests-only    build, test
#   scripts/gpu_check.sh --build-only    build, for a machine without a GPU
#   scripts/gpu_check.sh --tensorflow    training instead, in the environment of scripts/setup.sh --gpu:
#                                        the operations on a GPU, two ranks on one and on two GPUs, costs.
#                                        Writes gpu_report.json; --help lists its options, such as
#                                        --dry-run: all of it, small, on the CPU
# NVCC names another nvcc, HVD_DBS_CUDA_ARCH another architecture than the GPU's (such as sm_80).
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit
fi

# Says whether there is an NVIDIA GPU, and on stderr what else can be done if there is none.
has_gpu() {
  nvidia-smi -L 2>/dev/null | grep -q GPU && return
  echo "gpu_check.sh: there is no NVIDIA GPU here (nvidia-smi -L lists none)." >&2
  echo "gpu_check.sh: $1" >&2
  return 1
}

if [[ ${1:-} == --tensorflow ]]; then
  if [[ " ${*:2} " != *" --dry-run "* && " ${*:2} " != *" --help "* ]]; then
    has_gpu "--tensorflow --dry-run runs everything on the CPU." || exit 3
  fi
  # shellcheck source=scripts/environment.sh
  source "$repository/scripts/environment.sh"
  export PYTHONPATH=$repository TF_CPP_MIN_LOG_LEVEL=3 TF_FORCE_GPU_ALLOW_GROWTH=true
  # mpirun refuses root, and more ranks than cores, unless it is told otherwise.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  exec python -m scripts.gpu_check "${@:2}"
fi

nvcc=${NVCC:-nvcc}
[[ -n ${NVCC:-} ]] || command -v nvcc >/dev/null || nvcc=/usr/local/cuda/bin/nvcc
if ! command -v "$nvcc" >/dev/null; then
  echo "gpu_check.sh: there is no nvcc here; install the CUDA toolkit or set NVCC." >&2
  exit 3
fi

architecture=${HVD_DBS_CUDA_ARCH:-native}
if [[ ${1:-} != --build-only ]]; then
  has_gpu "--build-only still compiles everything." || exit 3
elif [[ $architecture == native ]]; then
  architecture=sm_80
fi

build=$repository/build/gpu-check
mkdir -p "$build"
cd "$repository"
echo "== building with $("$nvcc" --version | sed -n 's/.*release \([^,]*\),.*/nvcc \1/p') for $architecture"
flags=(-std=c++17 -O3 -arch="$architecture" -I. -Xcompiler -Wall)
sources=(hvd_dbs/ops/cc/core/{pack_cuda,event_mark,device_signal}.cu hvd_dbs/ops/cc/core/step_clock.cc tests/cc/gpu/*.cu)
objects=()
jobs=()
for source in "${sources[@]}"; do
  object=$build/$(basename "$source").o
  "$nvcc" "${flags[@]}" -c "$source" -o "$object" &
  jobs+=($!)
  objects+=("$object")
done
for job in "${jobs[@]}"; do wait "$job"; done
"$nvcc" "${flags[@]}" "${objects[@]}" -o "$build/gpu_check"
if [[ ${1:-} == --build-only ]]; then
  echo "built $build/gpu_check; it was not run"
  exit 0
fi
echo "== $(date -u +%F), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)"
exec "$build/gpu_check" "$@"
