#!/usr/bin/env bash
# Measurements:  scripts/bench.sh KIND [option of benchmarks/KIND.py]...
#   op    the weighted allreduce against Horovod's own, on 2 and on 4 ranks
#   train every strategy against plain Horovod and the ideal, on emulated unequal ranks
#   round what a round of decision costs, on 2, 4 and 8 ranks
#   costs what the simulator assumes of jobs and machines, on as many ranks as there are cores
#   clocks    what the clocks take of a step, on 1 and on 2 ranks
#   observe   what observing a job takes of a step, on 2 ranks
#   losses    what losses of the global batch cost, on 2 and on 4 ranks
#   pipeline  how far data are prepared ahead, with pipelines of several speeds, on 2 ranks
#   data  TFRecords read by windows against TensorFlow's own ways
#   ramp  loss and accuracy where the number of ranks changes, with and without the ramp
#   papers    what papers published and what is measured here; alone it lists them
#   replay    what --replay foresees from journals of live runs, and what they then reach
#   verdicts  what hvd-dbs report says of live runs, and whether its what-if figures come true
#   memory    whether steps are faster where freed memory is kept
#   micro     what micro-batches and XLA cost and gain, and what changes of plan cost then
#   bounds    a fast rank with little memory: a bound, micro-batches, no bound; live and simulated
#   ablation  what each mechanism of adaptive gains, in the simulator; hours for all of it
# KIND --help shows its options at once. Kinds with --minutes N stop after so many, and print what they
# have measured; they tell after their first round how long the others take.
# Everything else should stand still meanwhile; ranks share this machine's cores.
set -euo pipefail
kind=${1:-}
case $kind in
  op | train | round | costs | clocks | observe | losses | pipeline | data | ramp | papers | replay | verdicts | memory | micro | bounds | ablation) ;;
  *)
    sed -n '2,23s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
# What a kind is and which options it has; to be known before an environment is set up for minutes.
options_of_kind() {
  python3 "$(dirname "${BASH_SOURCE[0]}")/../benchmarks/options.py" "$@"
}
options=() minutes=
for word in "${@:2}"; do
  case $word in
    -h | --help) options_of_kind "$@"; exit ;;
  esac
done
shift
while (($#)); do
  case $1 in
    --minutes) minutes=${2:-none}; shift $(($# > 1 ? 2 : 1)) ;;
    --minutes=*) minutes=${1#*=}; minutes=${minutes:-none}; shift ;;
    *) options+=("$1"); shift ;;
  esac
done
if [[ $minutes ]]; then
  if [[ $(options_of_kind "$kind" "${options[@]}") != *--minutes* ]]; then
    echo "bench.sh: error: --minutes is given, but $kind cannot stop early. Leave it out." >&2
    exit 2
  elif [[ ! $minutes =~ ^[0-9]+(\.[0-9]+)?$ || $minutes =~ ^[0.]+$ ]]; then
    echo "bench.sh: error: --minutes is '$minutes', but a positive number of minutes is expected. Give for example --minutes 3." >&2
    exit 2
  fi
  declare -A num_jobs=([op]=4 [losses]=2)  # Each job has its part of the time.
  options+=(--minutes "$(awk "BEGIN { print $minutes / ${num_jobs[$kind]-1} }")")
fi
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$repository"
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
# mpirun refuses root, and more ranks than cores, unless it is told otherwise.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
if [[ ! $kind =~ ^(op|round|costs|clocks|observe|losses|pipeline)$ ]]; then
  exec python -m "benchmarks.$kind" "${options[@]}"
fi
# A job on so many ranks.
job() {
  mpirun -np "$1" --bind-to none python -m "benchmarks.$kind" "${@:2}" "${options[@]}" \
    2> >(grep -v '^[IW][0-9]\{4\} \|absl::Init\|triggered tf.function retracing' >&2 || true)
}
if [[ $kind == round ]]; then
  for ranks in 2 4 8; do job "$ranks"; done
elif [[ $kind == costs ]]; then
  job "$(nproc)"
elif [[ $kind == clocks ]]; then
  for ranks in 1 2; do job "$ranks"; done
elif [[ $kind == losses ]]; then
  for ranks in 2 4; do job "$ranks"; done
elif [[ $kind == pipeline || $kind == observe ]]; then
  job 2
else
  export TF_ENABLE_ONEDNN_OPTS=0
  # A job each: Horovod remembers 1024 tensors by name, and no more.
  for ranks in 2 4; do
    for layout in resnet50 bert_base; do job "$ranks" --layout "$layout"; done
  done
fi
