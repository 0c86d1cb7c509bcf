"""Verdicts on live jobs whose trouble is known, and what-if figures beside what then happens.

    scripts/bench.sh verdicts                          all jobs
    scripts/bench.sh verdicts --cases "a slow host"    one of them

In each job an even split and `adaptive` take turns, with what is wrong. Verdict and figures are
from the journal of the even split. What a repair brings is measured in the same job where it can
remove what is wrong, else in a second job, on a healthy cluster, right after it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.time_budget import TimeBudget, minutes
from benchmarks.train import Request, Runner
from benchmarks.training.clusters import Lengths
from benchmarks.verdicts.cases import ADAPTIVE, CASES, EVEN, REPAIRED, Case
from hvd_dbs.cli.report.verdict import Verdict
from hvd_dbs.cli.report.what_if import Answer, with_strategies
from hvd_dbs.job.journal import read_journal

_START = 2
"""Steps of a fit until its data are ready in time."""


@dataclass(frozen=True)
class Gain:
    """How many times as fast a job gets: foreseen, with its range, and measured."""

    foreseen: float
    least: float
    most: float
    measured: float


@dataclass(frozen=True)
class Result:
    """What was said of a job, and what came of it.

    Attributes:
        case: Name of the job.
        is_right: Whether the verdict names the cause.
        text: The verdict.
        gains: How many times as fast, by what was done.
    """

    case: str
    is_right: bool
    text: str
    gains: dict[str, Gain]

    @property
    def rows(self) -> Iterator[str]:
        """Lines of the table."""
        verdict = "right" if self.is_right else "**wrong**"
        for what, gain in self.gains.items():
            difference = 100 * (gain.foreseen / gain.measured - 1)
            yield (
                f"| {self.case} | {verdict} | {what} | {gain.foreseen:.2f} ({gain.least:.2f} to "
                f"{gain.most:.2f}) | {gain.measured:.2f} | {difference:+.0f} % |"
            )


def result_of(name: str, case: Case, job: dict[str, Any], healthy: dict[str, Any]) -> Result:
    """The verdict on a job and its figures.

    Args:
        name: Of the case.
        case: What is wrong.
        job: What `Runner.run` returned, with journals.
        healthy: That of the healthy cluster, or of the job itself.
    """
    with tempfile.TemporaryDirectory(prefix="hvd_dbs-verdict-") as folder:
        path = Path(folder, "run.jsonl")
        path.write_text(job["journals"][EVEN])
        verdict = Verdict.of(read_journal(path)[0][-1])
    model, main = verdict.model, verdict.causes.main
    kind, ranks = case.cause
    (adaptive,) = with_strategies(model, (ADAPTIVE,))
    even = _mean(job, EVEN)
    repaired = EVEN if case.healthy else REPAIRED

    def gain(answer: Answer, seconds: float) -> Gain:
        before = model.mean_step
        foreseen = before / answer.step_seconds, before / answer.most, before / answer.least
        return Gain(*foreseen, measured=even / seconds)

    gains = {"balance": gain(adaptive, _mean(job, ADAPTIVE))}
    if kind != "none":
        gains["repair"] = gain(verdict.repaired, _mean(healthy, repaired))
    is_right = main.kind == kind and (not ranks or tuple(sorted(main.ranks)) == ranks)
    return Result(name, is_right, verdict.text, gains)


def _mean(job: dict[str, Any], trainer: str) -> float:
    rows = [np.array(steps)[_START:] for steps in job["rounds"][trainer]]
    return float(np.concatenate(rows).mean())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.sh verdicts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5, help="in each, all trainers take a turn")
    parser.add_argument("--start-epochs", type=int, default=3, help="rounds before these")
    parser.add_argument("--steps", type=int, default=12, help="of an epoch")
    parser.add_argument("--samples-per-rank", type=int, default=0, help="0: the model's own")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of a job at most")
    parser.add_argument("--json", type=Path, default=Path("build/verdicts.json"))
    parser.add_argument(
        "--minutes", type=minutes, help="print what there is after so many; default: all jobs"
    )
    return parser.parse_args()


def _run(name: str, options: argparse.Namespace) -> tuple[Result, dict[str, Any]]:
    case = CASES[name]
    lengths = Lengths(
        rounds=options.rounds,
        steps=options.steps,
        start_epochs=options.start_epochs,
        samples_per_rank=options.samples_per_rank,
    )
    runner = Runner(
        lengths,
        options.timeout,
        verbose=False,
        module="benchmarks.verdicts.job",
        options=(
            *("--input-share", str(case.input_share)),
            *(["--input-grows"] if case.input_grows else []),
        ),
        journals=True,
    )
    job = healthy = runner.run(Request(case.cluster, case.model, case.strategies))
    if case.healthy:
        healthy = runner.run(Request(case.healthy, case.model, (EVEN,)))
    return result_of(name, case, job, healthy), job


def main() -> int:
    """Runs the jobs, prints verdicts and the table, writes what was measured."""
    options = _parse()
    results: list[Result] = []
    jobs: list[dict[str, Any]] = []
    number_of_cases = 0
    for number in TimeBudget(options.minutes, say=print).rounds(1, len(options.cases)):
        name, number_of_cases = options.cases[number], number + 1
        print(name, flush=True)
        try:
            result, job = _run(name, options)
        except (RuntimeError, ValueError) as error:
            print(f"bench.sh verdicts: {name}: {error}", file=sys.stderr)
            continue
        results.append(result)
        jobs.append({**job, **asdict(result)})
        print(f"\n{result.text}\n", flush=True)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"format": 1, "jobs": jobs}) + "\n")
    print("\n| what is wrong | verdict | what if | foreseen | measured | difference |")
    print("|---|---|---|---:|---:|---:|")
    print("\n".join(row for result in results for row in result.rows))
    return 1 if len(results) < number_of_cases else 0


if __name__ == "__main__":
    sys.exit(main())
