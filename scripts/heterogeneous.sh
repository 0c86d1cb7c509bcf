#!/usr/bin/env bash
# Runs a Horovod or MPI command on this machine with every rank slowed to its relative speed.
# All options: scripts/heterogeneous.sh --help
set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
environment="$(dirname "$scripts")/.venv"

python=python3
if [[ -x "$environment/bin/python" ]]; then
    python="$environment/bin/python"
    # horovodrun and mpirun of the repository, unless the user works in an environment of their own.
    [[ -n "${VIRTUAL_ENV:-}" ]] || export PATH="$environment/bin:$PATH"
fi

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "heterogeneous.sh: error: $python is missing or older than Python 3.10; run scripts/setup.sh." >&2
    exit 2
fi
exec "$python" "$scripts/heterogeneous" "$@"
