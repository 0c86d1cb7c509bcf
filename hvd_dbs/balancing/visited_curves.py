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
        points, times = self.points.ravel(), self.times.ravel()
        at = np.maximum(above - 1, 0).astype(np.intp) * above.size + np.arange(above.size)
        x, y = points.take(at), times.take(at)
        slope = np.where(above == 0, self._first_slope, self.slope)
        between = np.flatnonzero((above > 0) & (above <= self._final))
        end = at.take(between) + above.size
        rise = times.take(end) - y.take(between)
        # What lies between a slow point and a faster larger one is taken to be as slow.
        slope[between] = np.maximum(rise / (points.take(end) - x.take(between)), 0.0)
        return np.asarray(y + slope * (batch_sizes - x))

    def usual_log_seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log of the seconds of ranks that nothing disturbs; for no samples, of one; `[size]`."""
        return np.asarray(self.usual + ELASTICITY * np.log(np.maximum(batch_sizes, 1.0)))

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        return self.narrow(deadline, deadline, grid).units_within(deadline, grid)

    def take(self, rows: NDArray[np.intp]) -> VisitedCurves:
        """The curves of some rows."""
        spells = (self.spells.now, self.spells.before, self.spells.past)
        return VisitedCurves(
            points=self.points.take(rows, axis=1),
            times=self.times.take(rows, axis=1),
            slope=self.slope.take(rows),
            spread=self.spread.take(rows),
            unrest=self.unrest.take(rows),
            usual=self.usual.take(rows),
            spells=SlowSpells(*(part.take(rows) for part in spells)),
        )

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
        inner = np.maximum((times.take(following) - start) / (end - first), _FLAT)
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

    def in_pieces(self) -> PiecewiseCurves:
        """The same curves in pieces, each from a visited point to the next."""
        points, size = self.points, self.slope.size
        first = np.vstack([np.zeros(size), points])
        last = np.vstack([points - 1, np.full(size, np.nan)])
        start = np.vstack([self._first_time, self.times])
        inner = np.maximum(np.diff(self.times, axis=0) / np.diff(points, axis=0), _FLAT)
        slope = np.vstack([self._first_slope, inner, np.full(size, np.nan)])
        beyond = self._final + 1, np.arange(size)
        last[beyond], slope[beyond] = np.inf, self.slope
        return PiecewiseCurves(first, last, start, slope)

    def largest_after(self, growth: float) -> NDArray[np.float64]:
        """The most samples if the largest visited batch size may grow by a factor, `[size]`.

        Args:
            growth: The factor. A rank that has visited one batch size only has no limit.
        """
        (largest,) = pick(self._final, self.points)
        return np.where(np.isfinite(self.points[1]), np.ceil(growth * largest) + 1, np.inf)

    def hopeful(self, optimism: float) -> PiecewiseCurves:
        """The same curves, but points not visited are taken to be faster by `optimism`.

        Args:
            optimism: From 0 to below 1.
        """
        plain = self.in_pieces()
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
        """The same curves, but for some batch sizes, not visited yet, that are hoped to be fast.

        Args:
            candidates: Batch sizes, shape `[size, k]`; NaN for none.
            optimism: From 0 to below 1.
        """
        plain = self.in_pieces()
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
    def _first_time(self) -> NDArray[np.float64]:
        """Seconds of a step without samples, shape `[size]`."""
        return np.asarray(np.maximum(self.times[0] - self._first_slope * self.points[0], _FLAT))

    @cached_property
    def _first_slope(self) -> NDArray[np.float64]:
        """Slope below the first point, not so steep that an empty step takes no time.

        Nor so flat that a rank that is a little late would have to give all its samples away.
        """
        most = self.times[0] / np.maximum(self.points[0], 1.0)
        return np.asarray(np.clip(self.slope, _LEAST_ELASTICITY * most, most))
