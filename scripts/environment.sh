# shellcheck shell=bash
# For scripts to source: sets up what is not set up yet, then puts .venv first on PATH.
# mpirun and horovodrun are then those of .venv, and horovodrun finds the mpirun that it looks for.
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$repository/scripts/setup.sh"
export VIRTUAL_ENV=$repository/.venv
export PATH=$VIRTUAL_ENV/bin:$PATH
unset PYTHONPATH PYTHONHOME
