"""What a step took at some batch sizes, of ranks of about the same speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hvd_dbs.balancing.curves import ELASTICITY
from hvd_dbs.balancing.measurement import LEAST_SECONDS, MOST_SECONDS
from hvd_dbs.balancing.point_curves import LEAST_ELASTICITY, PointCurves
from hvd_dbs.balancing.time_models.line_fit import add_point, line, no_sums

MOST_POINTS = 8
"""Batch sizes that are kept of a kind of device and a model."""


_MOST_OFF = 0.25
"""A point that is off the newer curve by more than this is of another pace, in logarithms: next to
a newer point, and as much more where batch sizes differ by a factor e."""


@dataclass(frozen=True)
class SpeedPoint:
    """What a step of some batch size took.

    Attributes:
        batch_size: Local batch size.
        seconds: Busy seconds of a step.
        count: How often that was measured.

    Raises:
        ValueError: If one of them cannot be.
    """

    batch_size: int
    seconds: float
    count: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.count < 1:
            raise ValueError(
                f"batch_size={self.batch_size} measured {self.count} times; both must be positive."
            )
        if not LEAST_SECONDS < self.seconds < MOST_SECONDS:
            raise ValueError(f"{self.seconds} s is not how long a step takes.")


Speeds = Mapping[str, Sequence[SpeedPoint]]
"""Points by class of ranks of about the same speed, with different batch sizes."""


def curves_through(points_by_row: Sequence[Sequence[SpeedPoint]]) -> PointCurves:
    """Curves through measured points, one row each; no row is empty."""
    size, capacity = len(points_by_row), max(map(len, points_by_row))
    points, times = (np.full((capacity, size), np.nan) for _ in range(2))
    sums = no_sums(size)
    for row, of_row in enumerate(points_by_row):
        for i, point in enumerate(sorted(of_row, key=lambda one: one.batch_size)):
            points[i, row], times[i, row] = point.batch_size, point.seconds
    for x, y in zip(points, times, strict=True):
        sums = add_point(sums, x, y, np.isfinite(x).astype(np.float64), keep=1.0)
    last = np.sum(np.isfinite(points), axis=0) - 1, np.arange(size)
    steepest = times[last] / points[last]
    # One point alone does not say which part of a step is fixed.
    most = np.where(last[0] > 0, 1.0, ELASTICITY) * steepest
    slope = np.clip(line(sums).per_sample, LEAST_ELASTICITY * steepest, most)
    return PointCurves(points, times, slope, np.zeros_like(slope))


def merged(old: Sequence[SpeedPoint], new: Sequence[SpeedPoint]) -> list[SpeedPoint]:
    """What is kept of points from two times.

    At the same batch size the new one replaces the old one. Old ones that contradict the new
    curve are of another pace, or of other samples, and are forgotten.

    Returns:
        At most `MOST_POINTS`, new ones and those measured often first; by batch size.
    """
    kept = _often(new)
    if not kept or not old:
        kept = kept or _often(old)
        return sorted(kept, key=lambda point: point.batch_size)
    sizes = np.array([point.batch_size for point in old], dtype=np.float64)
    expected = curves_through([kept] * len(old)).seconds(sizes)
    seconds = np.array([point.seconds for point in old])
    newer = np.array([[point.batch_size] for point in kept])
    away = np.min(np.abs(np.log(sizes / newer)), axis=0)
    stays = (np.abs(np.log(seconds / expected)) < _MOST_OFF * (1 + away)) & (away > 0)
    kept += _often([old[i] for i in np.flatnonzero(stays).tolist()])[: MOST_POINTS - len(kept)]
    return sorted(kept, key=lambda point: point.batch_size)


def _often(points: Sequence[SpeedPoint]) -> list[SpeedPoint]:
    """Those measured most often."""
    return sorted(points, key=lambda point: (-point.count, point.batch_size))[:MOST_POINTS]
