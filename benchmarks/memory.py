"""Whether steps on CPUs are faster where glibc keeps freed memory instead of giving it back.

    scripts/bench.sh memory                three models, six rounds: seven minutes on two cores

glibc gives large blocks back to the system when they are freed, and the kernel clears their pages
when the next step needs them. That costs where page faults are slow, as on some virtual machines.
A process trains a model on one core with glibc's defaults, and another one with thresholds so high
that memory is kept; they take turns. The table has medians over rounds, quartiles in brackets, and
the ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.time_budget import TimeBudget, minutes
from benchmarks.training.figures import Summary

_WAYS: dict[str, dict[str, str]] = {
    "by default": {},
    "kept": {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)},
}
"""Variables of glibc, with the largest values that it takes."""
_WARM_UP = 4
_MOST_SECONDS = 600.0
"""For one process: no model takes a tenth of that."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["digits", "residual", "transformer"])
    parser.add_argument("--steps", type=int, default=30, help="that count, of each process")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--minutes", type=minutes, help="stop after so many")
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_train(options.one, options.steps)))
        return
    budget = TimeBudget(options.minutes, say=lambda line: print(line, flush=True))
    measured: dict[str, dict[str, list[Any]]] = {
        model: {way: [] for way in _WAYS} for model in options.models
    }
    for number in budget.rounds(1, options.rounds):
        for model in options.models:
            # Who is first changes from round to round.
            for way in sorted(_WAYS, reverse=bool(number % 2)):
                measured[model][way].append(_measure(model, way, options.steps))
    print(table(measured))
    if options.json:
        options.json.write_text(json.dumps(measured) + "\n")


def table(measured: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> str:
    """The table: by model and way what each round has measured."""
    lines = [
        "| model | freed memory | ms a step | page faults a step | system ms a step | peak MiB |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for model, ways in measured.items():
        for way, rounds in ways.items():
            step = Summary.of(1000 * one["seconds"] for one in rounds)
            others = [
                Summary.of(one[name] for one in rounds).median
                for name in ("faults", "system_seconds", "peak_mib")
            ]
            lines.append(
                f"| {model} | {way} | {step.median:.1f} ({step.low:.1f} - {step.high:.1f}) "
                f"| {others[0]:.0f} | {1000 * others[1]:.1f} | {others[2]:.0f} |"
            )
        default, kept = ways.values()
        ratio = Summary.of(a["seconds"] / b["seconds"] for a, b in zip(default, kept, strict=True))
        lines.append(
            f"| | *times as fast* | {ratio.median:.2f} ({ratio.low:.2f} - {ratio.high:.2f}) | | | |"
        )
    return "\n".join(lines)


def _measure(model: str, way: str, steps: int) -> dict[str, float]:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--one", model, "--steps", str(steps)],
        env={**os.environ, **_WAYS[way], "TF_NUM_INTRAOP_THREADS": "1"},
        stdout=subprocess.PIPE,
        timeout=_MOST_SECONDS,
        check=True,
        text=True,
    )
    measured: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return measured


def _train(name: str, num_steps: int) -> dict[str, float]:
    """What a step of a model takes in this process."""
    from benchmarks.training.models import TASKS  # Only here: the parent needs no TensorFlow.

    task = TASKS[name]
    model = task.compiled_model(lambda optimizer: optimizer)
    samples = task.make_samples(task.samples_per_rank)
    for _ in range(_WARM_UP):
        model.train_on_batch(*samples)
    seconds = []
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(num_steps):
        start = time.perf_counter()
        model.train_on_batch(*samples)
        seconds.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": sorted(seconds)[num_steps // 2],
        "faults": (after.ru_minflt - before.ru_minflt) / num_steps,
        "system_seconds": (after.ru_stime - before.ru_stime) / num_steps,
        "peak_mib": after.ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main()
