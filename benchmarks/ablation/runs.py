"""Runs `adaptive` with and without its mechanisms, and keeps what came of it."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.ablation.cases import Cases
from benchmarks.ablation.mechanisms import MECHANISMS
from benchmarks.ablation.table import Difference
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.simulation import preset, simulate

WHOLE = "all"
"""Stands for `adaptive` with all of its mechanisms."""

Result = tuple[float, int, float]
"""Throughput over the oracle's; a number that is the same for runs with the same decisions; seconds
of processor time."""

Key = tuple[str, int, int]
"""Class, number of ranks, seed."""


@dataclass(frozen=True)
class Task:
    """A class, a number of ranks and a seed, and what is to be run on them."""

    cases: Cases
    key: Key
    mechanisms: tuple[str, ...]

    def run(self) -> dict[str, Result]:
        """Results by mechanism.

        Raises:
            RuntimeError: If a decision failed: the patch breaks `adaptive` and ablates nothing.
        """
        conditions = [Conditions.of(scenario) for scenario in self.cases.scenarios(*self.key)]
        results = {}
        for name in self.mechanisms:
            start = time.process_time()
            with nullcontext() if name == WHOLE else MECHANISMS[name].switched_off():
                runs = [simulate(each, preset("adaptive", each)) for each in conditions]
            warnings = {text for run in runs for text in run.warnings}
            if any(word in text for text in warnings for word in ("failed", "no usable")):
                raise RuntimeError(f"{self.key} without {name!r}: {sorted(warnings)}")
            plans = [[(c.step, c.batch_sizes.tolist()) for c in run.changes] for run in runs]
            decisions = repr((plans, [run.num_decisions for run in runs]))
            over = [run.conditions.oracle_seconds.sum() / run.true_seconds.sum() for run in runs]
            seconds = round(time.process_time() - start, 3)
            results[name] = (float(np.mean(over)), zlib.crc32(decisions.encode()), seconds)
        return results


class Results:
    """Results by mechanism, for each class, number of ranks and seed.

    Args:
        path: File that keeps them; None: none does.
        steps: Length of the runs.

    Raises:
        ValueError: If the file is of runs of another length.
    """

    def __init__(self, path: Path | None, steps: int) -> None:
        self._path, self._steps = path, steps
        self.found: dict[Key, dict[str, Result]] = {}
        if path is None or not path.exists():
            return
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["steps"] != steps:
            raise ValueError(f"{path} has runs of {saved['steps']} steps; expected {steps}.")
        for name, ranks, seed, results in saved["runs"]:
            self.found[name, ranks, seed] = {key: tuple(value) for key, value in results.items()}

    def missing(self, key: Key, mechanisms: Sequence[str]) -> tuple[str, ...]:
        """Which of these are not known yet."""
        return tuple(name for name in mechanisms if name not in self.found.get(key, {}))

    def add(self, key: Key, results: dict[str, Result]) -> None:
        """Adds what a task found, and writes the file."""
        self.found.setdefault(key, {}).update(results)
        if self._path is not None:
            runs = [[*key, found] for key, found in self.found.items()]
            temporary = self._path.with_suffix(".new")
            temporary.write_text(json.dumps({"steps": self._steps, "runs": runs}))
            temporary.replace(self._path)

    def whole(self, name: str, ranks: int, seeds: Sequence[int]) -> list[float]:
        """The whole's throughput over the oracle's, by seed."""
        return [found[WHOLE][0] for found in self._of(name, ranks, seeds) if WHOLE in found]

    def difference(
        self, mechanism: str, name: str, ranks: int, seeds: Sequence[int]
    ) -> Difference | None:
        """What a mechanism gains in a class; None where it was not run."""
        pairs = [
            (found[WHOLE], found[mechanism])
            for found in self._of(name, ranks, seeds)
            if WHOLE in found and mechanism in found
        ]
        if not pairs:
            return None
        whole, without = zip(*pairs, strict=True)
        return Difference.of(
            [one[0] for one in whole],
            [one[0] for one in without],
            [one[1] != other[1] for one, other in pairs],
        )

    def _of(self, name: str, ranks: int, seeds: Sequence[int]) -> list[dict[str, Result]]:
        keys = ((name, ranks, seed) for seed in seeds)
        return [self.found[key] for key in keys if key in self.found]

    def seconds_a_run(self) -> float:
        """Mean processor time of a mechanism on one seed of one class."""
        return float(np.mean([one[2] for found in self.found.values() for one in found.values()]))
