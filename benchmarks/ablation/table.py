"""Paired differences with intervals, as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.intervals import mean_and_half

LEAST_GAIN = 0.005
"""A mechanism is worth having if it surely gains this much of the oracle's throughput somewhere."""

LEAST_SEEDS = 5
"""Of fewer seeds nothing is sure: with hundreds of cells, some pairs agree by chance."""


@dataclass(frozen=True)
class Difference:
    """What a mechanism gains in a class.

    Attributes:
        mean: Throughput over the oracle's with it, minus without it.
        half: Half of the 95 % interval around it; infinite for a single seed.
        seeds: Number of pairs.
        changed: Seeds in which at least one decision was another one.
    """

    mean: float
    half: float
    seeds: int
    changed: int

    @classmethod
    def of(
        cls, whole: Sequence[float], without: Sequence[float], changed: Sequence[bool]
    ) -> Difference:
        """The mean of the pairs' differences, and its interval by Student's t."""
        pairs = np.subtract(whole, without)
        mean, half = mean_and_half(pairs)
        return cls(float(mean), float(half), len(pairs), sum(changed))

    @property
    def is_gain(self) -> bool:
        """Whether the mechanism surely gains enough."""
        return self.seeds >= LEAST_SEEDS and self.mean - self.half >= LEAST_GAIN

    @property
    def is_loss(self) -> bool:
        """Whether it surely costs as much."""
        return self.seeds >= LEAST_SEEDS and self.mean + self.half <= -LEAST_GAIN

    def __str__(self) -> str:
        if not self.changed:
            return "="
        mark = "**" if self.is_gain else "!" if self.is_loss else ""
        half = f"±{self.half:.4f}" if math.isfinite(self.half) else "(one seed)"
        return f"{mark}{self.mean:+.4f} {half}{mark}"


def markdown(
    columns: Sequence[str],
    whole: Mapping[str, Sequence[float]],
    rows: Mapping[str, Mapping[str, Difference]],
    off: Mapping[str, str],
) -> list[str]:
    """Lines of a table: the whole's throughput first, then what each mechanism gains.

    Args:
        columns: Classes.
        whole: Throughput over the oracle's, by class and seed.
        rows: Differences by mechanism and class.
        off: What is off without a mechanism.
    """
    lines = [
        "| mechanism | " + " | ".join(columns) + " | what is off |",
        "|---" * (2 + len(columns)) + "|",
        "| (all of `adaptive`) | "
        + " | ".join(f"{np.mean(whole[name]):.3f}" for name in columns)
        + " | nothing: throughput over the oracle's |",
    ]
    for mechanism, differences in rows.items():
        cells = (str(differences[name]) if name in differences else "" for name in columns)
        lines.append(f"| {mechanism} | " + " | ".join(cells) + f" | {off[mechanism]} |")
    return lines


def verdicts(rows: Mapping[str, Sequence[Difference]]) -> list[str]:
    """Lines that name what is defended by some class, and what is not."""
    defended = [name for name, found in rows.items() if any(d.is_gain for d in found)]
    idle = [name for name, found in rows.items() if not any(d.changed for d in found)]
    harmful = [name for name, found in rows.items() if any(d.is_loss for d in found)]
    judged = [name for name, found in rows.items() if any(d.seeds >= LEAST_SEEDS for d in found)]
    unjudged = [name for name in rows if name not in judged]
    others = [name for name in judged if name not in defended]
    return [
        f"defended (at least {LEAST_GAIN} beyond the interval somewhere): {_list(defended)}",
        f"not defended: {_list(others)}",
        f"fewer than {LEAST_SEEDS} seeds in each class: {_list(unjudged)}",
        f"costs at least {LEAST_GAIN} beyond the interval somewhere: {_list(harmful)}",
        f"changed no decision in any run: {_list(idle)}",
    ]


def _list(names: Sequence[str]) -> str:
    return "; ".join(names) or "none"
