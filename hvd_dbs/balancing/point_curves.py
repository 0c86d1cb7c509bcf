"""Straight lines through measured points, a slope beyond them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import Grid
from hvd_dbs.balancing.narrow_curves import NarrowCurves

FLAT = 1e-30
"""Seconds a sample of a piece of a curve that does not rise."""
LEAST_ELASTICITY = 0.2
"""D log t / d log b outside of the points is at least this: a step gets shorter with samples."""

OfPlans = dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]
"""By id, batch sizes that cannot change, kept so that their id stays theirs, and values there."""


def once_a_plan(
    compute: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    batch_sizes: NDArray[np.float64],
    known: OfPlans,
) -> NDArray[np.float64]:
    """Values at batch sizes, computed once: all who take part in a decision ask about its plans.

    Args:
        compute: Gives them; shapes `[size]`.
        batch_sizes: One for each rank; those that may still change are not kept.
        known: What has been computed; it is changed.
    """
    if batch_sizes.flags.writeable:
        return compute(batch_sizes)
    if id(batch_sizes) not in known:
        known[id(batch_sizes)] = batch_sizes, compute(batch_sizes)
    return known[id(batch_sizes)][1]


@dataclass(frozen=True)
class PointCurves:
    """Straight lines between points, a given slope beyond them.

    Attributes:
        points: Batch sizes, ascending, NaN at the end, shape `[capacity, size]`.
        times: Seconds there, shape `[capacity, size]`.
        slope: Seconds per sample beyond the outermost points, shape `[size]`.
        fixed: Seconds of each step that no batch size changes, shape `[size]`.
    """

    points: NDArray[np.float64]
    times: NDArray[np.float64]
    slope: NDArray[np.float64]
    fixed: NDArray[np.float64]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        return np.asarray((self.points[0] > 0) & (self.times[0] > 0) & (self.slope > 0))

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Busy seconds of each rank at its own batch size; shapes `[size]`."""
        return once_a_plan(self._seconds, batch_sizes, self._seconds_of_plans)

    def _seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        # In 64 bits, counting takes several times as long.
        above = np.sum(self.points <= batch_sizes, axis=0, dtype=np.int16)
        points, times = self.points.ravel(), self.times.ravel()
        at = np.maximum(above - 1, 0).astype(np.intp) * above.size + np.arange(above.size)
        x, y = points.take(at), times.take(at)
        is_below = above == 0
        y = np.where(is_below, self._fastest, y)
        slope = np.where(is_below, self._first_slope, self.slope)
        between = np.flatnonzero((above > 0) & (above <= self._final))
        end = at.take(between) + above.size
        rise = times.take(end) - y.take(between)
        # What lies between a slow point and a faster larger one is taken to be as slow.
        slope[between] = np.maximum(rise / (points.take(end) - x.take(between)), 0.0)
        return np.asarray(y + slope * (batch_sizes - x))

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        return self.narrow(deadline, deadline, grid).units_within(deadline, grid)

    def take(self, rows: NDArray[np.intp]) -> PointCurves:
        """The curves of some rows."""
        parts = (self.points.take(rows, axis=1), self.times.take(rows, axis=1))
        return PointCurves(*parts, self.slope.take(rows), self.fixed.take(rows))

    def narrow(self, low: float, high: float, grid: Grid) -> NarrowCurves:
        """The inverse for deadlines from `low` to `high` alone.

        Of thousands of ranks, only the pieces that matter are put together.
        """
        size, most = grid.low.size, (grid.high * grid.multiple_of).astype(np.float64)
        points, times = self.points.ravel(), self.times.ravel()
        below, begun = self._matter(low, high, most, grid.multiple_of)
        place = begun // size
        rank = begun - place * size  # Much faster than a remainder.
        following = np.minimum(begun + size, points.size - 1)
        is_final = place == self._final.take(rank)
        first, start = points.take(begun), times.take(begun)
        end = np.where(is_final, np.inf, points.take(following))
        inner = np.maximum((times.take(following) - start) / (end - first), FLAT)
        slope = np.where(is_final, self.slope.take(rank), inner)
        last = np.concatenate([self.points[0].take(below), end]) - 1
        rank = np.concatenate([below, rank])
        return NarrowCurves(
            grid.low - 1,
            rank,
            np.concatenate([np.zeros(below.size), first]),
            np.minimum(last, most.take(rank)),
            np.concatenate([self._first_time.take(below), start]),
            np.concatenate([self._first_slope.take(below), slope]),
        )

    def _matter(
        self, low: float, high: float, most: NDArray[np.float64], multiple_of: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """What may end at a deadline from `low` to `high`: before the first point, or from a point.

        Of the points that are met by `low` that is the last one, and of the others those that are
        met by `high`.

        Returns:
            Ranks, and places among the points of all ranks.
        """
        is_allowed = self.points <= most
        is_met = is_allowed & (self.times <= low)
        if multiple_of > 1:  # The multiple that is met may be a smaller one.
            is_met &= self.points % multiple_of == 0
        places = np.arange(1, len(self.points) + 1, dtype=np.int8)[:, np.newaxis]
        last_met = np.max(places * is_met, axis=0)
        begun = np.flatnonzero(is_allowed & (self.times <= high) & (places >= last_met))
        has_below = (last_met == 0) & (self._first_time <= high) & (self.points[0] >= 1)
        return np.flatnonzero(has_below), begun

    @cached_property
    def _seconds_of_plans(self) -> OfPlans:
        return {}

    @cached_property
    def _final(self) -> NDArray[np.int16]:
        """Where each rank's largest point is, shape `[size]`."""
        num_points = np.sum(np.isfinite(self.points), axis=0, dtype=np.int16)
        return np.asarray(np.maximum(num_points - 1, 0))

    @cached_property
    def _first_time(self) -> NDArray[np.float64]:
        """Seconds of a step without samples, shape `[size]`."""
        return np.asarray(np.maximum(self._fastest - self._first_slope * self.points[0], FLAT))

    @cached_property
    def _fastest(self) -> NDArray[np.float64]:
        """Seconds of a step just below the first point: no more than with more samples."""
        return np.asarray(np.fmin.reduce(self.times, axis=0))

    @cached_property
    def _first_slope(self) -> NDArray[np.float64]:
        """Slope below the first point, not so steep that an empty step takes no time.

        Nor so flat that a rank that is a little late would have to give all its samples away.
        """
        most = (self._fastest - self.fixed) / np.maximum(self.points[0], 1.0)
        return np.asarray(np.clip(self.slope, LEAST_ELASTICITY * most, most))
