"""Ranks come and go during training: what the learning rate's ramp does to loss and accuracy.

    python -m benchmarks.ramp
    python -m benchmarks.ramp --ranks 1 8 2 --seeds 10

A real task (scanned handwritten digits), SGD with momentum, batches of fixed size on each
rank, so that the global batch follows the number of ranks. As a step of a balanced job equals that
of one process on the whole global batch, one process represents all ranks here: what is resized is
the global batch. All runs see the same number of samples.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import hvd_dbs.keras as hvd
from benchmarks.ramp.figures import compared, figures
from benchmarks.ramp.report import draw, table
from benchmarks.ramp.training import Digits, Setting, train
from benchmarks.time_budget import TimeBudget, minutes

FOLLOWS: dict[str, dict[str, Any]] = {
    "ramp": {"ramps_down": True},
    "ramp up only": {},
    "at once": {"ramp_iterations": 0},
}
"""Ways to follow the number of ranks, with arguments of the callback: as published, the default,
and without a ramp."""
UNCHANGED = "rate unchanged"


def run_job(
    setting: Setting,
    seeds: Sequence[int],
    digits: Digits,
    budget: TimeBudget,
    only_following: bool = False,
) -> dict[str, Any]:
    """All variants of one setting, or only those in which the rate follows the ranks.

    A seed after the other, as many as there is time for.
    """
    variants: dict[str, tuple[Setting, dict[str, Any] | None]] = {
        name: (setting, follows) for name, follows in FOLLOWS.items()
    }
    if not only_following:
        variants[UNCHANGED] = (setting, None)
    for ranks in () if only_following else dict.fromkeys(setting.ranks):
        fixed = Setting(
            (ranks,) * len(setting.ranks),
            setting.epochs,
            setting.local_batch_size,
            setting.learning_rate,
            setting.momentum,
        )
        variants[f"{ranks} rank{'s' if ranks > 1 else ''} throughout"] = (fixed, None)
    runs: dict[str, list[Any]] = {name: [] for name in variants}
    for number in budget.rounds(1, len(seeds)):
        for name, (one, follows) in variants.items():
            runs[name].append(train(one, follows, seeds[number], digits))
        print(f"  seed {seeds[number]}: done", flush=True)
    return {
        "setting": asdict(setting),
        "figures": figures(runs),
        "compared": {other: compared(runs, other) for other in FOLLOWS if other != "ramp"},
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4, 2])
    parser.add_argument("--epochs", type=int, default=4, help="of each phase")
    parser.add_argument("--local-batch-size", type=int, default=32)
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[0.01, 0.03])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--only-following", action="store_true", help="leave out runs whose rate does not change"
    )
    parser.add_argument("--output", type=Path, default=Path("build/ramp.json"))
    parser.add_argument(
        "--minutes", type=minutes, help="print what there is after so many; default: all seeds"
    )
    options = parser.parse_args()
    hvd.init()
    digits = Digits()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = []
    each = None if options.minutes is None else options.minutes / len(options.learning_rates)
    for rate in options.learning_rates:
        budget = TimeBudget(each, say=print, begun=time.time())
        setting = Setting(tuple(options.ranks), options.epochs, options.local_batch_size, rate)
        print(f"learning rate {rate:g}", flush=True)
        jobs.append(run_job(setting, seeds, digits, budget, options.only_following))
        print("\n" + "\n".join(table(setting, jobs[-1])) + "\n", flush=True)
    versions = {"python": platform.python_version(), "tensorflow": tf.__version__}
    result = {
        "format": 1,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "versions": {**versions, "keras": keras.__version__},
        "jobs": jobs,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result) + "\n")
    picture = options.output.with_suffix(".png")
    draw(jobs, picture)
    print(f"Figures: {options.output}; picture: {picture}")


if __name__ == "__main__":
    main()
