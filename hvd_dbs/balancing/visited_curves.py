"""Curves through the batch sizes that were tried, hopeful about those that were not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import ELASTICITY, Grid
from hvd_dbs.balancing.piecewise_curves import NarrowCurves, PiecewiseCurves, pick

_FLAT = 1e-30
_LEAST_ELASTICITY = 0.2
"""Below the smallest point a step gets shorter by at least this part of what samples do."""
_FULL_HOPE_GAP = 4.0
"""Between points closer than this (in samples) there is less to hope for, in proportion."""


@dataclass(frozen=True)
class SlowSpells:
    """How much longer than usual ranks take, in logarithms. All fields have shape `[size]`.

    Attributes:
        now: As far as is known.
        before: When plans were decided on that hold now, three rounds ago.
        past: The most in spells over 20 % that are over; 0 for a rank that has had none.
    """

    now: NDArray[np.float64]
    before: NDArray[np.float64]
    past: NDArray[np.float64]

    @classmethod
    def none(cls, size: int) -> SlowSpells:
        """Of ranks that have never been slow."""
        return cls(np.zeros(size), np.zeros(size), np.zeros(size))


@dataclass(frozen=True)
class VisitedCurves:
    """Straight lines between visited points, a given slope beyond them.

    Attributes:
        points: Batch sizes visited, ascending, NaN at the end, shape `[capacity, size]`.
        times: Seconds there, shape `[capacity, size]`.
        slope: Seconds per sample beyond the outermost points, shape `[size]`.
        spread: Relative uncertainty of the time at the batch size in use, shape `[size]`.
        unrest: 1 where the last time was far off and waits for another, 2 where the pace is another
            one since the last round, else 0; shape `[size]`.
        usual: The pace of the rank when nothing disturbs it, log t - 0.9 log b, shape `[size]`.
        spells: When and how much slower than that ranks are.
    """

    points: NDArray[np.float64]
    times: NDArray[np.float64]
    slope: NDArray[np.float64]
    spread: NDArray[np.float64]
    unrest: NDArray[np.float64]
    usual: NDArray[np.float64]
    spells: SlowSpells

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        return np.asarray((self.points[0] > 0) & (self.times[0] > 0) & (self.slope > 0))

    @cached_property
    def typical_spread(self) -> float:
        """The median of `spread`."""
        return float(np.median(self.spread))

    def visited(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether each rank has tried its batch size; shapes `[size]`."""
        return np.asarray(np.any(self.points == batch_sizes, axis=0))

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Busy seconds of each rank at its own batch size; shapes `[size]`."""
        if batch_sizes.flags.writeable:
            return self._seconds(batch_sizes)
        # A plan is asked about by everyone who takes part in a decision.
        known = self._seconds_of_plans.get(id(batch_sizes))
        if known is None:
            known = batch_sizes, self._seconds(batch_sizes)
            self._seconds_of_plans[id(batch_sizes)] = known
        return known[1]

    def _seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        # In 64 bits, counting takes several times as long.
        above = np.sum(self.points <= batch_sizes, axis=0, dtype=np.int16)
        left, right = np.maximum(above - 1, 0), np.minimum(above, self._final)
        x, y = pick(left, self.points, self.times)
        end, end_time = pick(right, self.points, self.times)
        gap = end - x
        inner = (end_time - y) / np.where(gap > 0, gap, 1.0)
        outer = np.where(above == 0, self._first_slope, self.slope)
        # What lies between a slow point and a faster larger one is taken to be as slow.
        slope = np.where((gap > 0) & (above > 0), np.maximum(inner, 0.0), outer)
        return np.asarray(y + slope * (batch_sizes - x))

    def usual_log_seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log of the seconds of ranks that nothing disturbs; for no samples, of one; `[size]`."""
        return np.asarray(self.usual + ELASTICITY * np.log(np.maximum(batch_sizes, 1.0)))

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        return self.expected().units_within(deadline, grid)

    def take(self, rows: NDArray[np.intp]) -> PiecewiseCurves:
        """The curves of some rows, as expected."""
        return self.expected().take(rows)

    def narrow(self, low: float, high: float, grid: Grid) -> NarrowCurves:
        """The inverse for deadlines from `low` to `high` alone."""
        return self.expected().narrow(low, high, grid)

    def guarded(
        self, batch_sizes: NDArray[np.float64], slowed: NDArray[np.float64]
    ) -> VisitedCurves:
        """The curves of ranks that may be slowed down at any time.

        A rank that takes longer already stays as it is. Of the others, how they are doing at the
        moment does not matter: they count as slowed down.

        Args:
            batch_sizes: Batch sizes in use, shape `[size]`.
            slowed: Seconds there of the rank slowed down, shape `[size]`.
        """
        b = np.maximum(batch_sizes, 1.0)
        counted = slowed > self.seconds(batch_sizes)
        points = np.where(counted, np.nan, self.points)
        times = np.where(counted, np.nan, self.times)
        points[0] = np.where(counted, b, points[0])
        times[0] = np.where(counted, slowed, times[0])
        slope = np.where(counted, ELASTICITY * slowed / b, self.slope)
        return replace(self, points=points, times=times, slope=slope)

    def expected(self, growth: float = np.inf) -> PiecewiseCurves:
        """The same curves in pieces, each from a visited point to the next.

        Args:
            growth: Batch sizes beyond this many times the largest visited one are not asked for,
                where more than one was visited; inf for no such limit.
        """
        points, size = self.points, self.points.shape[1]
        first, last, start, slope = np.empty((4, len(points) + 1, size))
        first[0], last[0], slope[0] = 0.0, points[0] - 1, self._first_slope
        start[0] = np.maximum(self.times[0] - self._first_slope * points[0], _FLAT)
        first[1:], start[1:] = points, self.times
        np.subtract(points[1:], 1, out=last[1:-1])
        # In place, since with thousands of ranks it is memory that takes the time.
        inner = np.subtract(self.times[1:], self.times[:-1], out=slope[1:-1])
        inner /= points[1:] - points[:-1]
        np.maximum(inner, _FLAT, out=inner)
        last[-1] = slope[-1] = np.nan
        beyond = self._final + 1, np.arange(size)
        limit = np.where(np.isfinite(points[1]), np.ceil(growth * first[beyond]) + 1, np.inf)
        last[beyond], slope[beyond] = limit, self.slope
        return PiecewiseCurves(first, last, start, slope)

    def hopeful(self, optimism: float) -> PiecewiseCurves:
        """As expected, but points not visited are taken to be faster by `optimism`.

        Args:
            optimism: From 0 to below 1.
        """
        plain = self.expected()
        visited = np.isfinite(self.points)
        # Without its point, each piece between two points starts a sample later.
        first = np.vstack([plain.first[:1], plain.first[1:] + 1])
        start = np.vstack([plain.start[:1], plain.start[1:] + plain.slope[1:]])
        gap = plain.last - plain.first + 1
        trust = 1.0 - optimism * np.clip(gap / _FULL_HOPE_GAP, 0.0, 1.0)
        trust[0] = 1.0 - optimism
        return PiecewiseCurves(
            first=np.vstack([np.where(visited, self.points, np.inf), first]),
            last=np.vstack([np.where(visited, self.points, -np.inf), plain.last]),
            start=np.vstack([self.times, start * trust]),
            slope=np.vstack([np.full_like(self.times, _FLAT), plain.slope * trust]),
        )

    def hopeful_at(self, candidates: NDArray[np.float64], optimism: float) -> PiecewiseCurves:
        """As expected, but for some batch sizes, not visited yet, that are hoped to be fast.

        Args:
            candidates: Batch sizes, shape `[size, k]`; NaN for none.
            optimism: From 0 to below 1.
        """
        plain = self.expected()
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

    @cached_property
    def _seconds_of_plans(self) -> dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Batch sizes that cannot change, kept so that their id stays theirs, and seconds there."""
        return {}

    @cached_property
    def _final(self) -> NDArray[np.int16]:
        """Where each rank's largest point is, shape `[size]`."""
        num_points = np.sum(np.isfinite(self.points), axis=0, dtype=np.int16)
        return np.asarray(np.maximum(num_points - 1, 0))

    @cached_property
    def _first_slope(self) -> NDArray[np.float64]:
        """Slope below the first point, not so steep that an empty step takes no time.

        Nor so flat that a rank that is a little late would have to give all its samples away.
        """
        most = self.times[0] / np.maximum(self.points[0], 1.0)
        return np.asarray(np.clip(self.slope, _LEAST_ELASTICITY * most, most))
