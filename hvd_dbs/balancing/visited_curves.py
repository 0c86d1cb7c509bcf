"""Curves through the batch sizes that were tried, hopeful about those that were not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import RowCurves
from hvd_dbs.balancing.piecewise_curves import PiecewiseCurves

_FLAT = 1e-30
_FULL_HOPE_GAP = 4.0
"""Between points closer than this (in samples) there is less to hope for, in proportion."""


@dataclass(frozen=True)
class VisitedCurves(RowCurves):
    """Straight lines between visited points, a given slope beyond them.

    Attributes:
        points: Batch sizes visited, ascending, NaN at the end, shape `[size, capacity]`.
        times: Seconds there, shape `[size, capacity]`.
        slope: Seconds per sample beyond the outermost points, shape `[size]`.
    """

    points: NDArray[np.float64]
    times: NDArray[np.float64]
    slope: NDArray[np.float64]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        return (self.points[:, 0] >= 0) & (self.times[:, 0] > 0) & (self.slope > 0)

    def visited(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether each rank has tried its batch size; shapes `[size]`."""
        return np.asarray(np.any(self.points == batch_sizes[:, np.newaxis], axis=1))

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Busy seconds of each rank at its own batch size; shapes `[size]`."""
        rows = np.arange(len(batch_sizes))
        count = np.sum(np.isfinite(self.points), axis=1)
        above = np.sum(self.points <= batch_sizes[:, np.newaxis], axis=1)
        left, right = np.maximum(above - 1, 0), np.minimum(above, np.maximum(count - 1, 0))
        x, y = self.points[rows, left], self.times[rows, left]
        gap = self.points[rows, right] - x
        rise = self.times[rows, right] - y
        inner = rise / np.where(gap > 0, gap, 1.0)
        outer = np.where(above == 0, self._first_slope, self.slope)
        slope = np.where((gap > 0) & (above > 0), np.maximum(inner, 0.0), outer)
        # What lies between a slow point and a faster larger one is taken to be as slow.
        return np.asarray(y + slope * (batch_sizes - x))

    def hopeful(self, optimism: float) -> PiecewiseCurves:
        """The same curves, but points not visited are taken to be faster by `optimism`.

        Args:
            optimism: From 0 (as expected) to below 1.
        """
        points, times = self.points.T.copy(), self.times.T.copy()
        is_point = np.isfinite(points)
        gap = points[1:] - points[:-1]
        between = gap > 1
        slope = np.maximum((times[1:] - times[:-1]) / gap, _FLAT)
        trust = 1.0 - optimism * np.minimum(gap / _FULL_HOPE_GAP, 1.0)
        final = np.maximum(np.sum(is_point, axis=0) - 1, 0), np.arange(points.shape[1])
        outside = 1.0 - optimism
        first_slope = self._first_slope
        origin = np.maximum(times[0] - first_slope * points[0], _FLAT)
        return PiecewiseCurves(
            first=np.vstack(
                [
                    np.where(is_point, points, np.inf),
                    np.where(between, points[:-1] + 1, np.inf),
                    np.zeros_like(origin),
                    points[final] + 1,
                ]
            ),
            last=np.vstack(
                [
                    np.where(is_point, points, -np.inf),
                    np.where(between, points[1:] - 1, -np.inf),
                    points[0] - 1,
                    np.full_like(origin, np.inf),
                ]
            ),
            start=np.vstack(
                [
                    times,
                    (times[:-1] + slope) * trust,
                    origin * outside,
                    (times[final] + self.slope) * outside,
                ]
            ),
            slope=np.vstack(
                [
                    np.full_like(points, _FLAT),
                    slope * trust,
                    np.maximum(first_slope * outside, _FLAT),
                    self.slope * outside,
                ]
            ),
        )

    def hopeful_at(self, candidates: NDArray[np.float64], optimism: float) -> PiecewiseCurves:
        """As expected, but for some batch sizes, not visited yet, that are hoped to be fast.

        Args:
            candidates: Batch sizes, shape `[size, k]`; NaN for none.
            optimism: From 0 to below 1.
        """
        plain = self.hopeful(0.0)
        columns = []
        for candidate in candidates.T:
            fresh = (candidate > 0) & ~self.visited(candidate)
            start = self.seconds(np.where(fresh, candidate, 1.0)) * (1.0 - optimism)
            columns.append(
                (np.where(fresh, candidate, np.inf), np.where(fresh, candidate, -np.inf), start)
            )
        first, last, start = (np.stack(part) for part in zip(*columns, strict=True))
        return PiecewiseCurves(  # In front, so that they count and not the piece around them.
            np.vstack([first, plain.first]),
            np.vstack([last, plain.last]),
            np.vstack([start, plain.start]),
            np.vstack([np.full_like(first, _FLAT), plain.slope]),
        )

    @property
    def _first_slope(self) -> NDArray[np.float64]:
        """Slope below the first point, not so steep that an empty step takes no time."""
        return np.minimum(self.slope, self.times[:, 0] / np.maximum(self.points[:, 0], 1.0))
