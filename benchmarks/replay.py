"""What `hvd-dbs simulate --replay` foresees from the journals of live runs, and what came of it.

    scripts/bench.sh replay                     all clusters
    scripts/bench.sh replay --clusters three    one of them

Each cluster is a job as of `bench.sh train`, in which the strategies take turns, each with a
journal. From each journal the steps of every strategy are foreseen, and compared with what that
strategy took in the same job: in all rounds after its start, without the first two steps of epochs.
Each epoch is a fit of its own here, whose data pipeline begins anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.time_budget import TimeBudget, minutes
from benchmarks.train import Request, Runner
from benchmarks.training.clusters import CLUSTERS, REPLAYED, Lengths
from hvd_dbs.cli.simulate.replay import job_rounds, mean_seconds
from hvd_dbs.job.journal import read_journal
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.replay import replay_of
from hvd_dbs.simulator.simulation import preset, simulate

STRATEGIES = ("even", "dbs", "adaptive")
_START = 2
"""Steps of a fit until its data are ready in time: the first waits for them, the next one too."""


@dataclass(frozen=True)
class Foreseen:
    """A figure that was foreseen, and what came of it.

    Attributes:
        cluster: Name of the cluster.
        journal: Strategy whose journal it was foreseen from.
        strategy: Whose steps they are.
        foreseen_seconds: Mean of a step.
        measured_seconds: Likewise.
    """

    cluster: str
    journal: str
    strategy: str
    foreseen_seconds: float
    measured_seconds: float

    @property
    def difference(self) -> float:
        """Of the foreseen from the measured, in parts of the latter."""
        return self.foreseen_seconds / self.measured_seconds - 1

    @property
    def row(self) -> str:
        """A line of the table."""
        foreseen, measured = 1000 * self.foreseen_seconds, 1000 * self.measured_seconds
        return (
            f"| `{self.cluster}` | `{self.journal}` | `{self.strategy}` | {foreseen:.1f} | "
            f"{measured:.1f} | {100 * self.difference:+.1f} % |"
        )


def foreseen_of(measured: dict[str, Any], steps_per_epoch: int) -> Iterator[Foreseen]:
    """All pairs of a journal and a strategy of one job.

    Args:
        measured: What `Runner.run` returned, with journals.
        steps_per_epoch: Steps of an epoch of the job.
    """
    with tempfile.TemporaryDirectory(prefix="hvd_dbs-replay-") as folder:
        for journal, text in sorted(measured["journals"].items()):
            path = Path(folder, f"{journal}.jsonl")
            path.write_text(text)
            replay = replay_of(job_rounds(read_journal(path)[0][-1], path.name))
            scenario = replace(replay.scenario, steps_per_epoch=steps_per_epoch)
            conditions = Conditions.of(scenario)
            for name, rounds in measured["rounds"].items():
                steps = np.concatenate([np.array(seconds) for seconds in rounds])
                # A journal may lack the last steps of a fit, and has those of the start.
                first = max(scenario.steps - len(steps), scenario.steps // 4)
                yield Foreseen(
                    measured["cluster"],
                    journal,
                    name,
                    mean_seconds(simulate(conditions, preset(name, conditions)), first),
                    float(steps[np.arange(len(steps)) % steps_per_epoch >= _START].mean()),
                )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.sh replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, default=REPLAYED)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="of an epoch")
    parser.add_argument("--samples-per-rank", type=int, default=0, help="0: the model's own")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of a job at most")
    parser.add_argument("--json", type=Path, default=Path("build/replay.json"))
    parser.add_argument(
        "--minutes", type=minutes, help="print what there is after so many; default: all clusters"
    )
    return parser.parse_args()


def main() -> int:
    """Runs the jobs, prints the table, writes what was measured."""
    options = _parse()
    lengths = Lengths(
        rounds=options.rounds, steps=options.steps, samples_per_rank=options.samples_per_rank
    )
    runner = Runner(lengths, options.timeout, verbose=False, journals=True)
    jobs: list[Any] = []
    found: list[Any] = []
    num_clusters = 0
    for number in TimeBudget(options.minutes, say=print).rounds(1, len(options.clusters)):
        cluster, num_clusters = options.clusters[number], number + 1
        print(f"{cluster}", flush=True)
        try:
            jobs.append(runner.run(Request(cluster, options.model, tuple(options.strategies))))
        except RuntimeError as error:
            print(f"bench.sh replay: {cluster}: {error}", file=sys.stderr)
            continue
        found += foreseen_of(jobs[-1], options.steps)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"format": 1, "jobs": jobs}) + "\n")
    print("\n| cluster | journal of | strategy | foreseen ms | measured ms | difference |")
    print("|---|---|---|---:|---:|---:|")
    print("\n".join(entry.row for entry in found))
    others = [abs(entry.difference) for entry in found if entry.journal != entry.strategy]
    if others:
        print(
            f"\nOf another strategy than the journal's: {100 * np.median(others):.1f} % in the "
            f"median, {100 * max(others):.1f} % at most, {len(others)} figures."
        )
    return 1 if len(jobs) < num_clusters else 0


if __name__ == "__main__":
    sys.exit(main())
