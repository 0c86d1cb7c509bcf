#!/usr/bin/env bash
# Sets up if needed, then disturbs small elastic trainings with random faults (ranks killed, stopped,
# slowed down, hosts added and removed, several at once) and checks what comes out of each:
#   scripts/chaos.sh --seed S [--runs N] [--keep DIR]
#   scripts/chaos.sh --slow-hosts        # hosts at 3 % and 30 %, of which the first is to leave
# The same seed gives the same schedule of faults. A run takes about a minute.
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$repository"

export CUDA_VISIBLE_DEVICES=
exec python -m tests.chaos "$@"
