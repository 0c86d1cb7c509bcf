#!/usr/bin/env bash
# Runs Horovod's own examples and tests on 2 ranks with their import changed to hvd_dbs, and prints
# a table of what runs. SNAPSHOT is a clone of github.com/horovod/horovod, with or without work tree:
#   scripts/foreign.sh SNAPSHOT [WORD ...]     only rows whose script has one of the words
set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
environment="$(dirname "$scripts")/.venv"

python=python3
if [[ -x "$environment/bin/python" && -z "${VIRTUAL_ENV:-}" ]]; then
  python="$environment/bin/python"
  export PATH="$environment/bin:$PATH"
fi
exec "$python" "$scripts/foreign/main.py" "$@"
