"""Records speeds and loads on this host while a neighbour process comes and goes.

    scripts/bench.sh papers record_loads --seconds 240 --csv build/papers/loads.csv

One process computes steps of a constant amount of work, as a rank with a constant batch size does,
on one core. After each it notes how long the step took and what the library's own sampler of the
host's load says then: what a job would give its time model. A second process, another program,
computes on the same core for random periods.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from benchmarks.training.neighbour import Neighbour, RemoteNeighbour
from hvd_dbs.host.host_load import HostLoad

_CALIBRATION_PASSES = 50
_NUMBERS = 65_536
"""What a step computes with: half a megabyte, which fits into a core's cache."""


@dataclass(frozen=True)
class Step:
    """One step, and what is known at its end.

    Attributes:
        seconds: How long it took.
        cpu_load: The host's processor use by others, 0 to 1; NaN: unknown.
        memory_load: The host's memory in use, 0 to 1; NaN: unknown.
        is_visited: Whether the neighbour was there when the step ended; no model is given it.
    """

    seconds: float
    cpu_load: float
    memory_load: float
    is_visited: float


class Visits:
    """When the neighbour is there: periods of exponential length, alternating.

    Args:
        quiet_seconds: Mean time without it.
        busy_seconds: Mean time with it.
        seed: Of the lengths.
    """

    def __init__(self, quiet_seconds: float, busy_seconds: float, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._means = (quiet_seconds, busy_seconds)
        self.is_there = False
        self._until = self._random.exponential(quiet_seconds)

    def advance(self, now: float) -> bool:
        """Whether the neighbour is there at a time, in seconds since the start; times only grow."""
        while now >= self._until:
            self.is_there = not self.is_there
            self._until += self._random.exponential(self._means[self.is_there])
        return self.is_there


def calibrated(seconds: float) -> Callable[[], None]:
    """A step of about this length on this core while nobody disturbs it: of so much CPU time."""
    numbers = np.linspace(-1.0, 1.0, _NUMBERS)

    def work(passes: int) -> None:
        for _ in range(passes):
            np.tanh(numbers)  # One thread, unlike products of matrices.

    work(_CALIBRATION_PASSES)
    times = []
    for _ in range(5):
        begin = time.process_time()
        work(_CALIBRATION_PASSES)
        times.append(time.process_time() - begin)
    passes = max(1, round(seconds / min(times) * _CALIBRATION_PASSES))
    return lambda: work(passes)


def record(seconds: float, step_seconds: float, visits: Visits, core: int) -> list[Step]:
    """Steps for so many seconds, on a core that a neighbour visits."""
    os.sched_setaffinity(0, {core})
    step = calibrated(step_seconds)
    steps: list[Step] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hvd_dbs-loads-"))
        pipe = Path(folder, "neighbour")
        stack.enter_context(Neighbour(pipe))
        neighbour = RemoteNeighbour(pipe, core, is_leader=True)
        host_load = stack.enter_context(HostLoad())
        start, was_there = time.monotonic(), False
        while (now := time.monotonic()) - start < seconds:
            step()
            ended = time.monotonic()
            load = host_load.latest()
            steps.append(Step(ended - now, load.cpu, load.memory, float(was_there)))
            is_there = visits.advance(ended - start)
            if is_there != was_there:
                neighbour.run() if is_there else neighbour.pause()
            was_there = is_there
    return steps


def write(steps: list[Step], path: Path) -> None:
    """One line a step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Step))
        writer.writerows([f"{value:.6g}" for value in astuple(step)] for step in steps)


def read(path: Path) -> list[Step]:
    """The steps of such a file.

    Raises:
        ValueError: If it is none.
    """
    with path.open(newline="") as file:
        reader = csv.reader(file)
        if next(reader, []) != [field.name for field in fields(Step)]:
            raise ValueError(f"{path} was not written by record_loads.")
        return [Step(*map(float, row)) for row in reader]


def main() -> None:
    """Records."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--step-seconds", type=float, default=0.5, help="undisturbed")
    parser.add_argument("--quiet-seconds", type=float, default=20.0, help="mean")
    parser.add_argument("--busy-seconds", type=float, default=10.0, help="mean")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path, default=Path("build/papers/loads.csv"))
    options = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    visits = Visits(options.quiet_seconds, options.busy_seconds, options.seed)
    steps = record(options.seconds, options.step_seconds, visits, core)
    write(steps, options.csv)
    with_it = np.mean([step.is_visited for step in steps])
    print(f"{len(steps)} steps, with the neighbour {with_it:.0%}: {options.csv}")


if __name__ == "__main__":
    main()
