#!/usr/bin/env bash
# Makes the picture of docs/report.md: the page of a job's journal, as Debian's chromium draws it.
#   scripts/page_picture.sh                     docs/report.png, of a simulated job (benchmarks/simulated_journal.py)
#   scripts/page_picture.sh PICTURE JOURNAL     of any job
set -euo pipefail
case ${1:-} in
  -h | --help)
    sed -n '2,4s/^# *//p' "${BASH_SOURCE[0]}"
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
  python -m benchmarks.simulated_journal "$journal"
fi
hvd-dbs report "$journal" --page "$folder/run.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1080,1500 --virtual-time-budget=3000 \
  --user-data-dir="$folder/profile" --screenshot="$picture" "file://$folder/run.html" 2>/dev/null
