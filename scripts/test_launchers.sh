#!/usr/bin/env bash
# Follows pages of docs/launchers/ literally on emulated hosts, and checks what comes out:
#   scripts/test_launchers.sh [NAME]...     horovodrun mpirun slurm ray spark kubernetes (default: all)
# Takes root, and five to ten minutes for a page. What a launcher needs is installed first: Debian's packages
# with apt-get, those of Python in an environment of their own on top of this one, in the cache folder.
# The output of all commands of a page:  python -m tests.launchers.pages NAME
set -euo pipefail

if [[ -n ${VIRTUAL_ENV:-} ]]; then
  repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
else
  # shellcheck source=scripts/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
fi
cd "$repository"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvd_dbs/launchers
launchers=("$@")
((${#launchers[@]})) || launchers=(horovodrun mpirun slurm ray spark kubernetes)

# Installs Debian's packages unless a program of theirs is there: debian PROGRAM PACKAGE...
debian() {
  command -v "$1" >/dev/null || apt-get install --yes --quiet --no-install-recommends "${@:2}"
}

# Makes an environment on top of this one, with more packages in their versions: on_top NAME PACKAGE...
on_top() {
  local folder=$cache/$1 own
  [[ ! -e $folder/whole || $(<"$folder/whole") != "$VIRTUAL_ENV ${*:2}" ]] || return 0
  rm -rf "$folder"
  python -m venv "$folder"
  own=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # Open MPI's wheel lies in the one below, and would be looked for in this one.
  echo "import os, site; os.environ.setdefault('OPAL_PREFIX', '$VIRTUAL_ENV'); site.addsitedir('$own')" \
    >"$folder/lib/$(basename "$(dirname "$own")")/site-packages/below.pth"
  ln -s "$VIRTUAL_ENV/bin/hvd-dbs" "$folder/bin/"
  python -m pip freeze --exclude-editable | grep -v ' @ ' >"$folder/constraints.txt"
  "$folder/bin/python" -m pip install --quiet --constraint "$folder/constraints.txt" "${@:2}"
  echo "$VIRTUAL_ENV ${*:2}" >"$folder/whole"
}

for launcher in "${launchers[@]}"; do
  case $launcher in
    horovodrun | mpirun | kubernetes) ;;
    slurm) debian slurmctld slurmctld slurmd slurm-client munge libpmix-dev ;;
    ray) on_top ray ray==2.60.0 ;;
    spark)
      debian java openjdk-17-jre-headless
      on_top spark pyspark==4.3.0 pyarrow==26.0.1
      ;;
    *) echo "test_launchers.sh: error: '$launcher' is none of: horovodrun mpirun slurm ray spark kubernetes." >&2 && exit 2 ;;
  esac
done
HVD_DBS_LAUNCHERS="${launchers[*]}" exec python -m pytest -q tests/launchers
