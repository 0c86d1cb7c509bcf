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

# What each check says, and beside it, in a file named .failed, that it failed.
reports=$(mktemp -d "${TMPDIR:-/tmp}/hvd_dbs_checks.XXXXXX")
trap 'rm -rf "$reports"' EXIT
check() {
  "${@:2}" >"$reports/$1" 2>&1 || touch "$reports/$1.failed"
}
mapfile -d '' shell_scripts < <(find scripts .ci -type f \( -name '*.sh' -o -path '.ci/*' \) -print0)
all_checks() {
  check "ruff check" ruff check .
  check "ruff format" ruff format --check .
  check "shellcheck" shellcheck --external-sources "${shell_scripts[@]}"
  check "mypy" mypy
  check "mkdocs" mkdocs build --strict --site-dir "$reports/site"
  check "native core" scripts/test_native.sh
}

# One after the other, on one core: pytest has room for that beside its jobs.
echo "== ruff, shellcheck, mypy, mkdocs and the native core, beside pytest"
all_checks &
status=0
python -m pytest "$@" || status=$?
wait
for failed in "$reports"/*.failed; do
  [[ -e $failed ]] || continue
  # Beside pytest's closing line, which stays the last one of the output.
  name=$(basename "$failed" .failed)
  printf '== %s\n%s\nFailed beside the tests: %s\n' "$name" "$(<"$reports/$name")" "$name" >&2
  ((status)) || status=1
done
exit "$status"
