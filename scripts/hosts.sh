#!/usr/bin/env bash
# Runs a command on several emulated hosts of this machine: own network, host name, ssh, home and /tmp each.
# All options: scripts/hosts.sh --help
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
    echo "hosts.sh: error: $python is missing or older than Python 3.10; run scripts/setup.sh." >&2
    exit 2
fi
exec "$python" "$scripts/hosts" "$@"
