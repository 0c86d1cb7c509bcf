"""Curves made of straight pieces, which may jump and fall between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import Grid


@dataclass(frozen=True)
class PiecewiseCurves:
    """t_i(b) = start + slope * (b - first) on the piece first <= b <= last that holds b.

    All fields have shape `[pieces, size]`. The pieces of a rank cover each whole number of
    samples from 0 on; a piece with first > last is empty, and where two overlap the first counts.

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
        piece = np.argmax((self.first <= batch_sizes) & (batch_sizes <= self.last), axis=0)
        rows = np.arange(len(batch_sizes))
        into = batch_sizes - self.first[piece, rows]
        return np.asarray(self.start[piece, rows] + self.slope[piece, rows] * into)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        empty = self.first > self.last
        fine = (self.start > 0) & np.isfinite(self.start) & (self.slope >= 0)
        return np.asarray(np.all(empty | fine, axis=0))

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        reach = _reach(deadline, self.first, self.last, self.start, self.slope)
        units = np.minimum(np.floor(reach / grid.multiple_of), grid.high)
        fits = (units >= grid.low) & (units * grid.multiple_of >= self.first)
        most = np.where(fits, units, grid.low - 1).max(axis=0)
        return np.asarray(most, dtype=np.int64)

    def take(self, rows: NDArray[np.intp]) -> PiecewiseCurves:
        """The curves of some rows."""
        parts = (self.first, self.last, self.start, self.slope)
        return PiecewiseCurves(*(part[:, rows] for part in parts))

    def narrow(self, low: float, high: float, grid: Grid) -> NarrowCurves:
        """The same inverse for deadlines from `low` to `high` alone, made to be asked often.

        Pieces that nobody finishes by `high` cannot matter, and of those that are finished by
        `low` only the longest does. What is left is a piece or two for each rank.
        """
        open_end = _reach(low, self.first, self.last, self.start, self.slope) < self.last
        piece, rows = np.nonzero(open_end & (self.start <= high) & (self.first <= self.last))
        return NarrowCurves(
            self.units_within(low, grid),
            rows,
            self.first[piece, rows],
            self.last[piece, rows],
            self.start[piece, rows],
            self.slope[piece, rows],
        )


@dataclass(frozen=True)
class NarrowCurves:
    """The pieces of curves that matter between two deadlines; only the inverse is left.

    Attributes:
        least: Units finished at any of these deadlines, shape `[size]`.
        rows: The rank that each further piece belongs to, shape `[pieces]`.
        first: As in `PiecewiseCurves`, shape `[pieces]`, like all that follow.
        last: Most samples.
        start: Seconds at `first`.
        slope: Seconds for each further sample.
    """

    least: NDArray[np.int64]
    rows: NDArray[np.intp]
    first: NDArray[np.float64]
    last: NDArray[np.float64]
    start: NDArray[np.float64]
    slope: NDArray[np.float64]

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        reach = _reach(deadline, self.first, self.last, self.start, self.slope)
        units = np.minimum(np.floor(reach / grid.multiple_of), grid.high[self.rows])
        fits = (units >= grid.low[self.rows]) & (units * grid.multiple_of >= self.first)
        most = self.least.copy()
        np.maximum.at(most, self.rows[fits], units[fits].astype(np.int64))
        return most

    def take(self, rows: NDArray[np.intp]) -> NarrowCurves:
        """The curves of some rows."""
        place = np.full(len(self.least), -1)
        place[rows] = np.arange(len(rows))
        kept = place[self.rows] >= 0
        parts = (self.first, self.last, self.start, self.slope)
        return NarrowCurves(
            self.least[rows], place[self.rows[kept]], *(part[kept] for part in parts)
        )


def _reach(
    deadline: float,
    first: NDArray[np.float64],
    last: NDArray[np.float64],
    start: NDArray[np.float64],
    slope: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The most samples of each piece by the deadline; below `first` where there are none."""
    reach = np.floor((deadline - start) / slope + 1e-9)
    return np.asarray(np.minimum(np.where(start <= deadline, first + reach, -1.0), last))
