"""Curves made of straight pieces, which may jump and fall between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import Grid


def pick(
    place: NDArray[np.integer], *parts: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    """Of each part, shape `[places, size]`, the value at each rank's place; shapes `[size]`."""
    flat = place.astype(np.intp) * place.size + np.arange(place.size)
    return tuple(part.ravel().take(flat) for part in parts)


def _first_true(rows: NDArray[np.bool_]) -> NDArray[np.int16]:
    """The first true row of each column, 0 for none, shape `[columns]`; faster than `argmax`."""
    num_rows = len(rows)
    from_below = np.arange(num_rows, 0, -1, dtype=np.int16)[:, np.newaxis]
    return np.asarray((num_rows - np.max(rows * from_below, axis=0)) % num_rows)


@dataclass(frozen=True)
class PiecewiseCurves:
    """t_i(b) = start + slope * (b - first) on the piece first <= b <= last that holds b.

    All fields have shape `[pieces, size]`. The pieces of a rank cover each whole number of
    samples from 0 on. A piece is empty where first <= last does not hold, as for NaN; where two
    overlap the first counts.

    Attributes:
        first: Fewest samples of the piece.
        last: Most samples of the piece; inf for the one without end.
        start: Seconds at `first`.
        slope: Seconds that each further sample adds; positive.
    """

    first: NDArray[np.float64]
    last: NDArray[np.float64]
    start: NDArray[np.float64]
    slope: NDArray[np.float64]

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Busy seconds of each rank at its own batch size; shapes `[size]`."""
        inside = (self.first <= batch_sizes) & (batch_sizes <= self.last)
        first, start, slope = pick(_first_true(inside), self.first, self.start, self.slope)
        return start + slope * (batch_sizes - first)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        empty = ~(self.first <= self.last)
        fine = (self.start > 0) & np.isfinite(self.start) & (self.slope >= 0)
        return np.asarray(np.all(empty | fine, axis=0))

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        return self.narrow(deadline, deadline, grid).units_within(deadline, grid)

    def take(self, rows: NDArray[np.intp]) -> PiecewiseCurves:
        """The curves of some rows."""
        parts = (self.first, self.last, self.start, self.slope)
        return PiecewiseCurves(*(part.take(rows, axis=1) for part in parts))

    def narrow(self, low: float, high: float, grid: Grid) -> NarrowCurves:
        """The same inverse for deadlines from `low` to `high` alone, made to be asked often.

        Pieces that nobody finishes by `high` cannot matter, and of those that are finished by
        `low` only the longest does. What is left is a piece or two for each rank.
        """
        most = (grid.high * grid.multiple_of).astype(np.float64)
        last = np.minimum(self.last, most)
        begun = np.flatnonzero((self.start <= high) & (self.first <= last))
        parts = (self.first, last, self.start, self.slope)
        pieces = NarrowCurves(
            grid.low - 1, begun % grid.low.size, *(part.ravel().take(begun) for part in parts)
        )
        reach = pieces.reach(low, grid.multiple_of)
        return replace(pieces, least=pieces.longest(reach)).of(np.flatnonzero(reach < pieces.last))


@dataclass(frozen=True)
class NarrowCurves:
    """The pieces of curves that matter between two deadlines; only the inverse is left.

    Attributes:
        least: Units finished at any of these deadlines, shape `[size]`.
        rank: Whose each piece is, shape `[pieces]`.
        first: As of `PiecewiseCurves`, shape `[pieces]`; likewise those that follow.
        last: No more than the grid allows.
        start: Seconds.
        slope: Seconds a sample.
    """

    least: NDArray[np.int64]
    rank: NDArray[np.intp]
    first: NDArray[np.float64]
    last: NDArray[np.float64]
    start: NDArray[np.float64]
    slope: NDArray[np.float64]

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        return self.longest(self.reach(deadline, grid.multiple_of))

    def longest(self, reach: NDArray[np.float64]) -> NDArray[np.int64]:
        """The most units of each rank, shape `[size]`, given those of the pieces."""
        units = self.least.astype(np.float64)
        np.maximum.at(units, self.rank, reach)
        return units.astype(np.int64)

    def reach(self, deadline: float, multiple_of: int) -> NDArray[np.float64]:
        """The most units of each piece by the deadline, shape `[pieces]`; -1 where there are none.

        Args:
            deadline: Seconds.
            multiple_of: Samples in a unit.
        """
        reach = deadline - self.start
        late = reach < 0
        reach /= self.slope
        reach += 1e-9
        np.floor(reach, out=reach)
        reach += self.first
        np.minimum(reach, self.last, out=reach)
        if multiple_of > 1:
            reach = np.floor(reach / multiple_of)
            late |= reach * multiple_of < self.first
        reach[late] = -1.0
        return reach

    def take(self, rows: NDArray[np.intp]) -> NarrowCurves:
        """The curves of some rows."""
        place = np.full(self.least.size, -1)
        place[rows] = np.arange(rows.size)
        rank = place[self.rank]
        return replace(self, least=self.least[rows], rank=rank).of(np.flatnonzero(rank >= 0))

    def of(self, pieces: NDArray[np.intp]) -> NarrowCurves:
        """The curves with some of the pieces."""
        parts = (self.first, self.last, self.start, self.slope)
        return NarrowCurves(
            self.least, self.rank.take(pieces), *(part.take(pieces) for part in parts)
        )
