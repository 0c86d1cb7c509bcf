"""DBS (Ye et al., 2020): three workers share a device, the fourth has one of its own.

    scripts/bench.sh papers dbs                 about 4 minutes on 2 cores
    scripts/bench.sh papers dbs --faults        with the paper's fault generator

Four ranks with 1/3, 1/3, 1/3 and a whole core (less, in proportion, where the machine has no two
cores to spare), global batch 512. All strategies start with the same weights and train in turns, an
epoch each. By hand: with an even split a step takes 128 / (1/3), with the best 512 / 2, so 33 %
less.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.rows import Row, report, spread_of
from benchmarks.train import Request, Runner
from benchmarks.training.clusters import Lengths

STRATEGIES = ("even", "dbs", "adaptive")
GLOBAL_BATCH_SIZE = 512
STEPS = 12
"""Of an epoch: all 6,144 digits."""
_SETTLED = 2
"""Epochs after which `dbs` has measured all that it can use."""


def seconds_to(accuracy: Sequence[float], seconds: Sequence[float], wanted: float) -> float:
    """Seconds of training until a test accuracy is reached first; NaN if it never is."""
    reached = np.flatnonzero(np.array(accuracy) >= wanted)
    return float(np.sum(seconds[: reached[0] + 1])) if reached.size else float("nan")


def rows_of(measured: Mapping[str, Any], with_faults: bool, wanted: float) -> list[Row]:
    """Time of an epoch, time to an accuracy, and the accuracy at the end."""
    seconds, accuracy = measured["epoch_seconds"], measured["accuracy"]
    even = np.array(seconds["even"])
    cluster = "1/3, 1/3, 1/3, 1 of a core, B = 512, digits"
    cluster += ", with faults" if with_faults else ""
    rows = []
    for name in seconds:
        if name == "even":
            continue
        saved = 1 - np.array(seconds[name])[_SETTLED:] / even[_SETTLED:]
        here, spread = spread_of(saved, ".0%", "epochs")
        published = "up to 35 % less; by hand 33 %" if name == "dbs" else "-"
        rows.append(
            Row(f"`{name}`: time of an epoch less than even's", published, here, spread, cluster)
        )
    for name, times in seconds.items():
        until = seconds_to(accuracy[name], times, wanted)
        here = f"{until:.0f} s to {wanted:.0%}; at the end {accuracy[name][-1]:.1%}"
        here += f" after {np.sum(times):.0f} s"
        rows.append(Row(f"`{name}`: accuracy over time", "-", here, "one run", cluster))
    return rows


def main() -> None:
    """Runs the job, prints and keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", action="store_true", help="with the paper's fault generator")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument(
        "--accuracy", type=float, default=0.9, help="time is reported until this one"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--timeout", type=float, default=1200.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "even" not in options.strategies:
        raise SystemExit("--strategies needs even, which the others are compared with.")
    lengths = Lengths(rounds=options.epochs, steps=STEPS, samples_per_rank=GLOBAL_BATCH_SIZE // 4)
    faults = ["--seed", str(options.seed), *(["--faults"] if options.faults else [])]
    runner = Runner(lengths, options.timeout, False, "benchmarks.papers.dbs_job", faults)
    order = ["even", *(name for name in options.strategies if name != "even")]
    measured = runner.run(Request("dbs", "digits", tuple(order)))
    name = "dbs_faults" if options.faults else "dbs"
    path = options.json or Path(f"build/papers/{name}.json")
    rows = rows_of(measured, options.faults, options.accuracy)
    report("DBS" + (", with its fault generator" if options.faults else ""), rows, path)
    path.with_suffix(".measured.json").write_text(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
