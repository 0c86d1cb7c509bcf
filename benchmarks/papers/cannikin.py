"""Cannikin (Nie et al., 2024): live, where gradients travel long after the backward pass.

    scripts/bench.sh papers cannikin            ten epochs, about a second a step

Two ranks on emulated hosts, one of them at half speed, over a link of 1 Gbit/s; the gradients
are three buckets of 16 MiB. The quick rank takes long to read its samples, before the step
computes, so most of its work is done before its first bucket. A rank has finished at

    f_i = max(busy_i, first bucket_i + T_o),

and a step takes T_u + max_i f_i. `dbs` makes busy_i equal; where T_o counts, equal f_i are
shorter. Strategies train in turns, an epoch each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.rows import Row, report, spread_of
from benchmarks.train import Request, Runner
from benchmarks.training.clusters import Lengths
from benchmarks.training.figures import without_epoch_starts
from hvd_dbs.job.journal import read_journal
from hvd_dbs.job.journal_entries import RoundEntry

STRATEGIES = ("even", "dbs", "cannikin", "adaptive")
PUBLISHED = {"cannikin": "up to 52 %, batch size adapted"}


def longer_than_predicted(rounds: Sequence[RoundEntry], settled: int) -> Iterator[float]:
    """By what steps took longer than was predicted for their plan, in parts of the prediction.

    Args:
        rounds: Of fits of one epoch each.
        settled: Epochs that do not count.
    """
    epoch = 0
    for before, entry in pairwise(rounds):
        epoch += entry.step <= before.step
        predicted, taken = before.predicted_seconds[1], entry.step_seconds
        # Of a round that is the first step of a batch size it is not known what a step takes.
        is_known = predicted > 0 and taken > 0
        if epoch >= settled and entry.batch_sizes == before.plan and is_known:
            yield taken / predicted - 1


def _rounds(journal: str) -> list[RoundEntry]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        path.write_text(journal)
        return [entry for part in read_journal(path)[0] for entry in part.rounds]


def rows_of(measured: Mapping[str, Any], settled: int) -> list[Row]:
    """Times of steps, of which part less than `dbs`'s, and how far from what was predicted."""
    steps = measured["lengths"]["steps"]
    seconds = {
        name: np.array([without_epoch_starts(times, steps).mean() for times in rounds[settled:]])
        for name, rounds in measured["rounds"].items()
    }
    cluster = f"speeds 1, 0.5, 1 Gbit/s, B = {measured['global_batch_size']}"
    rows = []
    for name, own in seconds.items():
        here, spread = spread_of(1e3 * own, ".0f", "epochs")
        plan = measured["plans"][name][-1]
        rows.append(Row(f"`{name}`: step, ms; plan {plan}", "-", here, spread, cluster))
    for name in ("cannikin", "adaptive"):
        if name in seconds:
            here, spread = spread_of(1 - seconds[name] / seconds["dbs"], ".1%", "epochs")
            published = PUBLISHED.get(name, "-")
            rows.append(Row(f"`{name}`: time less than `dbs`'s", published, here, spread, cluster))
    for name, journal in measured["journals"].items():
        longer = list(longer_than_predicted(_rounds(journal), settled))
        if longer:
            here, spread = spread_of(longer, "+.1%", "rounds")
            what = f"`{name}`: step longer than predicted"
            rows.append(Row(what, "-", here, spread, cluster))
    return rows


def main() -> None:
    """Runs the job, prints and keeps the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--settled", type=int, default=4, help="epochs that do not count")
    parser.add_argument("--steps", type=int, default=12, help="of an epoch")
    parser.add_argument(
        "--reading", type=float, default=0.0024, help="seconds that rank 0 reads a sample"
    )
    parser.add_argument(
        "--samples-per-rank", type=int, default=256, help="of the global batch, for each rank"
    )
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--timeout", type=float, default=1800.0)
    parser.add_argument("--json", type=Path, default=Path("build/papers/cannikin.json"))
    options = parser.parse_args()
    if "dbs" not in options.strategies:
        raise SystemExit("--strategies needs dbs, which the others are compared with.")
    lengths = Lengths(
        rounds=options.epochs, steps=options.steps, samples_per_rank=options.samples_per_rank
    )
    runner = Runner(
        lengths,
        options.timeout,
        False,
        "benchmarks.papers.cannikin_job",
        ["--reading", str(options.reading)],
        journals=True,
    )
    measured = runner.run(Request("link", "wide", tuple(options.strategies)))
    title = "Cannikin, over a slow link"
    report(title, rows_of(measured, options.settled), options.json)
    options.json.with_suffix(".measured.json").write_text(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
