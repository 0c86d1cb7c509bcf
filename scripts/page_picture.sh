#!/usr/bin/env bash
# Makes the picture of docs/report.md: trains on four unequal ranks, writes the page of the job's journal, and has
# Debian's chromium draw it. Takes some minutes; everything else should stand still meanwhile.
#   scripts/page_picture.sh                     docs/report.png
#   scripts/page_picture.sh PICTURE JOURNAL     of a job that has a journal already
set -euo pipefail
case ${1:-} in
  -h | --help)
    sed -n '2,5s/^# *//p' "${BASH_SOURCE[0]}"
    exit
    ;;
esac
if ! command -v chromium >/dev/null; then
  echo "page_picture.sh: error: there is no chromium, but a browser is needed. On Debian: sudo apt-get install chromium" >&2
  exit 2
fi
picture=$(realpath -m "${1:-docs/report.png}") journal=${2:+$(realpath "$2")}
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$repository"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [[ ! $journal ]]; then
  journal=$folder/run.jsonl
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 CUDA_VISIBLE_DEVICES=
  scripts/heterogeneous.sh --speeds 1,1,0.5,0.25 --from 1 -- \
    mpirun -np 4 --bind-to none --oversubscribe python examples/keras_digits.py --epochs 12 --journal "$journal" >&2
fi
hvd-dbs report "$journal" --page "$folder/run.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1080,1560 --virtual-time-budget=3000 \
  --user-data-dir="$folder/profile" --screenshot="$picture" "file://$folder/run.html" 2>/dev/null
