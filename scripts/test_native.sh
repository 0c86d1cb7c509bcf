#!/usr/bin/env bash
# Builds and runs the tests of the native core, plain and with address and undefined-behaviour sanitizers:
# then the CUDA sources too, as C++ for a CPU, and copies of them with planted bugs, which must be caught.
# Needs a C++ compiler and cmake; takes less than a minute.  scripts/test_native.sh [FOLDER for the builds]
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
build=${1:-$repository/build}
[[ -d $repository/.venv/bin ]] && PATH=$repository/.venv/bin:$PATH

generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
for sanitize in OFF ON; do
  echo "== native core, sanitizers $sanitize"
  folder=$build/cc-$sanitize
  cmake -S "$repository/tests/cc" -B "$folder" "${generator[@]}" -DHVD_DBS_SANITIZE="$sanitize" >/dev/null
  cmake --build "$folder" --parallel 2
  ctest --test-dir "$folder" --output-on-failure
done
