#!/usr/bin/env bash
# Measurements:  scripts/bench.sh op|train|data|ramp [option of benchmarks/op.py, train.py, ...]...
#   op    the weighted allreduce against Horovod's own, on 2 and on 4 ranks
#   train every strategy against plain Horovod and the ideal, on emulated unequal ranks
#   data  TFRecords read by windows against TensorFlow's own ways
#   ramp  loss and accuracy where the number of ranks changes, with and without the ramp
# Everything else should stand still meanwhile; ranks share this machine's cores.
set -euo pipefail
if [[ ! ${1:-} =~ ^(op|train|data|ramp)$ ]]; then
  sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$repository"
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
# mpirun refuses root, and more ranks than cores, unless it is told otherwise.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
if [[ $1 != op ]]; then
  exec python -m "benchmarks.$1" "${@:2}"
fi
export TF_ENABLE_ONEDNN_OPTS=0
options=("${@:2}")
layouts=(resnet50 bert_base)
for ranks in 2 4; do
  for layout in "${layouts[@]}"; do
    # A job each: Horovod remembers 1024 tensors by name, and no more.
    mpirun -np "$ranks" --bind-to none python -m benchmarks.op --layout "$layout" "${options[@]}" \
      2> >(grep -v '^[IW][0-9]\{4\} \|absl::Init\|triggered tf.function retracing' >&2 || true)
  done
done
