"""Disturbs small elastic trainings with random faults and checks what comes out of them.

scripts/chaos.sh --seed S [--runs N] [--hosts]
scripts/chaos.sh --slow-hosts
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median

from hvd_dbs.job.journal import read_journal
from tests.chaos.disturbance import Pace, run_schedule
from tests.chaos.job import MOST_SILENCE
from tests.chaos.schedule import JOURNAL, KINDS, NETWORK_KINDS, SLOW_HOSTS, make_schedule
from tests.hosts import MISSING


def main() -> int:
    """Runs the schedules of the seeds given; the exit code says whether all went well."""
    parser = argparse.ArgumentParser(prog="scripts/chaos.sh", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first schedule")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--keep", type=Path, help="folder to leave notes and output in")
    parser.add_argument("--hosts", action="store_true", help="emulate a host for each rank")
    parser.add_argument(
        "--slow-hosts",
        action="store_true",
        help="instead: hosts at 3 %% and 30 %%, of which the first is to leave; shows their steps",
    )
    options = parser.parse_args()
    if options.slow_hosts:
        return slow_hosts()
    if options.hosts and MISSING:
        parser.error(f"hosts cannot be emulated here: {MISSING}")
    failed = []
    happened: Counter[str] = Counter()
    longest_silence = 0.0
    for seed in range(options.seed, options.seed + options.runs):
        schedule = make_schedule(seed, options.hosts)
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.keep or Path(temporary)) / f"seed{seed}"
            folder.mkdir(parents=True)
            # The watchdog ends what is frozen; on hosts it must leave alone what is out of reach.
            pace = Pace(abort_seconds=10.0 if options.hosts else None)
            outcome = run_schedule(schedule, folder, pace)
        faults = "; ".join(f"step {fault.step}: {fault.kind}" for fault in schedule.faults)
        setting = f"{schedule.num_ranks} ranks, {schedule.strategy}, {schedule.global_batch}"
        print(
            f"seed {seed} ({setting}): {faults}: "
            f"{'FAILED' if outcome.problems else 'ok'}, {len(outcome.happened)} had an effect, "
            f"{outcome.num_runs} runs, "
            f"longest silence {outcome.longest_silence:.0f} s, "
            f"{time.monotonic() - begin:.0f} s",
            flush=True,
        )
        for problem in outcome.problems:
            print(f"  {problem}", flush=True)
        failed += [seed] if outcome.problems else []
        happened.update(outcome.happened)
        num_in_a_row = sum(one.step == other.step for one, other in pairwise(schedule.faults))
        happened["two in a row"] += num_in_a_row * (len(outcome.happened) == len(schedule.faults))
        longest_silence = max(longest_silence, outcome.longest_silence)
    kinds = (*KINDS, *NETWORK_KINDS) if options.hosts else KINDS
    counts = ", ".join(f"{kind} {happened[kind]}" for kind in (*kinds, "two in a row"))
    print(f"faults that had an effect: {counts}", flush=True)
    print(f"longest silence {longest_silence:.0f} s of at most {MOST_SILENCE:.0f} s", flush=True)
    print(f"{options.runs - len(failed)} of {options.runs} schedules passed", flush=True)
    if failed:
        print(f"failed: {json.dumps(failed)}", file=sys.stderr)
    return int(bool(failed))


def slow_hosts() -> int:
    """What steps take with a host at 3 % and after it has left; whether all went well."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_schedule(SLOW_HOSTS, Path(folder), Pace(step_seconds=0.0))
        parts, _ = read_journal(Path(folder) / JOURNAL)
    for part in parts:
        plan = part.rounds[-1].batch_sizes
        seconds = median(one.step_seconds for one in part.rounds if one.batch_sizes == plan)
        print(
            f"{len(plan)} ranks, local batch sizes {list(plan)}: {1000 * seconds:.0f} ms a step, "
            f"{len(plan) * seconds:.2f} device-s"
        )
    is_well = not outcome.problems and len(outcome.happened) == len(SLOW_HOSTS.faults)
    print(*(outcome.problems or ["ok" if is_well else "the wrong hosts have left"]), sep="\n")
    return int(not is_well)


if __name__ == "__main__":
    sys.exit(main())
