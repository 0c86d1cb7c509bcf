#!/usr/bin/env bash
# Sets up if needed, then runs every check and the tests:  scripts/test.sh [PATH or pytest option]...
# Without a path all of tests/ runs. Fails if anything fails, but runs everything before it does.
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$repository"

# Ranks share this machine's cores: one thread each, or they fight. And no test may find a GPU by accident.
export TF_NUM_INTRAOP_THREADS=1 OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
export TF_CPP_MIN_LOG_LEVEL=2

failed=()
check() {
  echo "== $1"
  "${@:2}" || failed+=("$1")
}

check "ruff check" ruff check .
check "ruff format" ruff format --check .
check "mypy" mypy
mapfile -d '' shell_scripts < <(find scripts .ci -type f \( -name '*.sh' -o -path '.ci/*' \) -print0)
check "shellcheck" shellcheck --external-sources "${shell_scripts[@]}"
check "native core" scripts/test_native.sh

echo "== pytest"
status=0
python -m pytest "$@" || status=$?
if ((${#failed[@]})); then
  # Beside pytest's closing line, which stays the last one of the output.
  printf 'Failed before the tests: %s\n' "${failed[@]}" >&2
  ((status)) || status=1
fi
exit "$status"
