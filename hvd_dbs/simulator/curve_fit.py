"""A rank's time curve from the rounds of a job, some of which another job may have slowed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import ELASTICITY

_UNSURE = 0.3
"""Standard deviation of the elasticity before anything is measured of it."""

_LEAST_ELASTICITY = 0.05
"""More samples always take longer."""

_ROUND_NOISE = 0.02
"""Standard deviation of a round of one step, in parts of it; of n steps: its n-th root less."""

_FAR = 0.15
"""A round that is off by more, in parts of its time, is that of a slow period, not of the curve."""

_SPREAD = 1.25
"""Batch sizes that differ by this factor show how a rank's time grows with its batch."""

_DOUBT_STEPS = 20.0
"""Steps at which a visited batch size counts as much as the line through all of them."""


@dataclass(frozen=True)
class FittedCurve:
    """Seconds of a step by samples: a line, and what visited batch sizes differ from it.

    Attributes:
        samples: A usual batch size.
        seconds: Seconds of a step there, on the line.
        elasticity: d log t / d log b there; 1 is a line through the origin.
        visited: Batch sizes that were measured, ascending, shape `[k]`.
        factors: By how much they take longer than the line says, shape `[k]`.
    """

    samples: float
    seconds: float
    elasticity: float
    visited: NDArray[np.float64]
    factors: NDArray[np.float64]

    @property
    def shows_growth(self) -> bool:
        """Whether the rank has had batch sizes that show how its time grows with them."""
        return bool(self.visited[-1] >= _SPREAD * self.visited[0])

    def at(self, samples: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds at these batch sizes; outside of the visited ones the line alone."""
        line = self.seconds * (1 + self.elasticity * (samples / self.samples - 1))
        factors = np.interp(samples, self.visited, self.factors, left=1.0, right=1.0)
        return np.asarray(line * factors, dtype=np.float64)


def fit_curve(
    samples: NDArray[np.float64], seconds: NDArray[np.float64], steps: NDArray[np.float64]
) -> FittedCurve:
    """The curve of one rank.

    With one batch size visited, the line has the elasticity that is assumed where nothing is known;
    each further one makes it more that of the measured rounds. Rounds that are far from the others
    at their batch size are left out: they are the rank's pace, not its curve.

    Args:
        samples: Batch size of each round, shape `[rounds]`, one round at least.
        seconds: Busy seconds of a step, likewise.
        steps: Steps that these are the mean of, likewise.
    """
    usual = _median(samples, steps)
    level = _median(seconds / (samples / usual) ** ELASTICITY, steps)
    off = np.abs(np.log(seconds / level / (samples / usual) ** ELASTICITY))
    kept = off < _FAR + _UNSURE * np.abs(np.log(samples / usual))
    elasticity = ELASTICITY
    for _ in range(2):
        level, elasticity = _line(samples[kept] / usual, seconds[kept], steps[kept], level)
        ratio = seconds / (level * (1 + elasticity * (samples / usual - 1)))
        kept = np.abs(np.log(ratio)) < _FAR
        if not kept.any():
            kept = np.abs(np.log(ratio)) <= np.abs(np.log(ratio)).min()
    visited = np.unique(samples[kept])
    factors = np.ones(len(visited))
    for index, value in enumerate(visited):
        there = kept & (samples == value)
        trust = steps[there].sum() / (steps[there].sum() + _DOUBT_STEPS)
        factors[index] = np.average(ratio[there], weights=steps[there]) ** trust
    return FittedCurve(usual, level, elasticity, visited, factors)


def _line(
    relative: NDArray[np.float64],
    seconds: NDArray[np.float64],
    steps: NDArray[np.float64],
    level: float,
) -> tuple[float, float]:
    """Seconds at the usual batch size and the elasticity there, by least squares and the prior."""
    weights = steps / _ROUND_NOISE**2
    columns = np.stack([np.ones_like(relative), relative - 1])
    matrix = (columns * weights) @ columns.T
    target = (columns * weights) @ (seconds / level)
    matrix[1, 1] += 1 / _UNSURE**2
    target[1] += ELASTICITY / _UNSURE**2
    constant, slope = np.linalg.solve(matrix, target)
    elasticity = min(max(float(slope / constant), _LEAST_ELASTICITY), 1.0)
    return level * float(constant), elasticity


def _median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
