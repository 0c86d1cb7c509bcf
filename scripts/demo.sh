#!/usr/bin/env bash
# Sets up if needed, then trains on four unequal ranks, evenly split and balanced by DBS, and prints
# both beside what these ranks could do at best:
#   scripts/demo.sh [--minutes 3] [--speeds 1,1,0.5,0.25] [-- option of benchmarks/demo.py ...]
# --minutes  how long it takes once all is set up; what the first steps take decides how many fit
# --speeds   speed of each rank, in cores; scaled down together where there are fewer cores
set -euo pipefail

minutes=3 speeds=1,1,0.5,0.25
while (($#)); do
  case $1 in
    -h | --help) sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"; exit ;;
    --minutes) minutes=${2-}; shift $(($# > 1 ? 2 : 1)) ;;
    --speeds) speeds=${2:?--speeds needs a value such as 1,1,0.5,0.25}; shift 2 ;;
    --) shift; break ;;
    *) echo "demo.sh: error: unknown option $1; expected --minutes N, --speeds S0,S1,... or -- OPTIONS" >&2; exit 2 ;;
  esac
done
if [[ ! $minutes =~ ^[0-9]+(\.[0-9]+)?$ || $minutes =~ ^[0.]+$ ]]; then
  echo "demo.sh: error: --minutes is '$minutes', but a positive number of minutes is expected. Give for example --minutes 3." >&2
  exit 2
fi
echo "This takes about $minutes minutes (--minutes changes it), after the set-up where that is not done yet."

# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$repository"

# As root mpirun wants to be asked twice. Informational lines of TensorFlow would hide the table.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
commas=${speeds//[!,]/}
# --from 5: the ranks become unequal when TensorFlow is imported and has built all graphs, which are the
# first four steps of each training.
scripts/heterogeneous.sh --speeds "$speeds" --from 5 -- \
  mpirun -np $((${#commas} + 1)) --bind-to none python -m benchmarks.demo \
    --json build/demo.json --minutes "$minutes" "$@"
