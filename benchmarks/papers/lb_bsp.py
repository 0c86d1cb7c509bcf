"""LB-BSP (Chen et al., 2020) on shared hosts: a neighbour process comes and goes, live.

    scripts/bench.sh papers lb_bsp              about 8 minutes on 2 cores; docs/papers.md has it
    scripts/bench.sh papers lb_bsp --rounds 6   three times as long, with quartiles

Two equal ranks, a core each; another program computes on rank 1's core for half of each round of
four epochs. Steps take half a second and more, so that the sampled load is of the step before at
least. All strategies train in turns. The job is that of `scripts/bench.sh train`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.rows import Row, report, spread_of
from benchmarks.train import Request, Runner
from benchmarks.training.clusters import PLAIN, STRATEGIES, Lengths
from benchmarks.training.figures import without_epoch_starts

CLUSTER = "neighbour_pair"
SAMPLES_PER_RANK = 576
"""Digits: half a second and more on a core of 2026's small virtual machines."""
PUBLISHED = {"lb_bsp_cpu": "up to 38.7 % less time (CPUs), 54 % (GPUs)"}


def rows_of(measured: Mapping[str, Any]) -> list[Row]:
    """Time of a round less than that of plain Horovod in the same round."""
    steps = measured["lengths"]["steps"]
    seconds = {
        name: np.array([without_epoch_starts(times, steps).mean() for times in rounds])
        for name, rounds in measured["rounds"].items()
    }
    plain = seconds[PLAIN]
    cluster = (
        f"2 equal ranks, neighbour on one half of the time, B = {measured['global_batch_size']}"
    )
    here, spread = spread_of(1e3 * plain, ".0f", "rounds")
    rows = [Row(f"{PLAIN}: step, ms", "-", here, spread, cluster)]
    for name, own in seconds.items():
        if name != PLAIN:
            here, spread = spread_of(1 - own / plain, ".1%", "rounds")
            what = f"`{name}`: time less than an even split's"
            rows.append(Row(what, PUBLISHED.get(name, "-"), here, spread, cluster))
    return rows


def main() -> None:
    """Runs the job, prints and keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="of an epoch; a round has four")
    parser.add_argument("--samples-per-rank", type=int, default=SAMPLES_PER_RANK)
    parser.add_argument(
        "--strategies", nargs="+", choices=STRATEGIES, default=["lb_bsp_cpu", "dbs", "adaptive"]
    )
    parser.add_argument("--timeout", type=float, default=1800.0)
    parser.add_argument("--json", type=Path, default=Path("build/papers/lb_bsp.json"))
    options = parser.parse_args()
    lengths = Lengths(
        rounds=options.rounds,
        steps=options.steps,
        start_epochs=2,
        curve_seconds=0.3,
        samples_per_rank=options.samples_per_rank,
    )
    runner = Runner(lengths, options.timeout, verbose=False)
    measured = runner.run(Request(CLUSTER, "digits", (PLAIN, *options.strategies)))
    report("LB-BSP, a neighbour beside long steps", rows_of(measured), options.json)
    options.json.with_suffix(".measured.json").write_text(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
