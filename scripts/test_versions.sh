#!/usr/bin/env bash
# Sets up and tests what is committed with several versions of TensorFlow, each in a clone of its own:
#   scripts/test_versions.sh [VERSION]...     default: the oldest, one between and the newest
# Prints a table at the end, and fails if a version does.
#   KEEP=1        keeps the clones, logs and environments
#   MINUTES=40    the most that the set-up, and after it the tests, of a version may take
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
limit=${MINUTES:-40}m
versions=("$@")
((${#versions[@]})) || versions=(2.16 2.18 2.21)
# What a version of TensorFlow or Keras can break, and is tested in minutes.
core=(
  tests/unit/cli tests/unit/test_keras_stack.py tests/tf tests/mpi/test_weighted_allreduce.py
  tests/mpi/test_training.py::test_two_ranks
  tests/mpi/test_training.py::test_two_ranks_without_the_native_library
)
facts='import platform, keras, numpy, tensorflow
print(tensorflow.__version__, keras.__version__, numpy.__version__, platform.python_version())'
# As in scripts/test.sh.
export TF_NUM_INTRAOP_THREADS=1 OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=2

work=$(mktemp -d "${TMPDIR:-/tmp}/hvd_dbs_versions.XXXXXX")
[[ -n ${KEEP:-} ]] || trap 'rm -rf "$work"' EXIT

rows=()
row() {
  rows+=("$(printf '%-11s %-8s %-8s %-8s %s' "$@")")
}
row TensorFlow Keras NumPy Python result
status=0
for version in "${versions[@]}"; do
  log=$work/$version.log
  echo "== TensorFlow $version; log: $log"
  if (
    # Joined by &&: errexit is off in a condition.
    git clone --quiet "$repository" "$work/$version" && cd "$work/$version" &&
      timeout --kill-after=1m "$limit" scripts/setup.sh --tensorflow "$version" &&
      PATH=$PWD/.venv/bin:$PATH && python -c "$facts" >"$work/$version.facts" &&
      timeout --kill-after=1m "$limit" python -m pytest -q "${core[@]}"
  ) >"$log" 2>&1 </dev/null; then
    result=$(tail -n 1 "$log")
  else
    result="failed with $?: $(tail -n 1 "$log")"
    status=1
    grep -E '^(FAILED|ERROR|setup:)' "$log" || tail -n 20 "$log"
  fi
  tensorflow=$version keras=- numpy=- python=-
  [[ ! -f $work/$version.facts ]] || read -r tensorflow keras numpy python <"$work/$version.facts"
  row "$tensorflow" "$keras" "$numpy" "$python" "$result"
  [[ -n ${KEEP:-} ]] || rm -rf "${work:?}/$version"
done
printf '%s\n' "${rows[@]}"
exit "$status"
