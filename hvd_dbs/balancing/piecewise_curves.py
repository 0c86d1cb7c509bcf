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
        return self._units(_reach(deadline, self.first, self.last, self.start, self.slope), grid)

    def _units(self, reach: NDArray[np.float64], grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid among those that each piece reaches; overwrites `reach`."""
        units, first = reach, self.first
        if grid.multiple_of > 1:
            units = np.floor(units / grid.multiple_of)
            first = np.ceil(first / grid.multiple_of)
        np.minimum(units, grid.high, out=units)
        units[(units < grid.low) | (units < first)] = -np.inf
        return np.asarray(np.maximum(units.max(axis=0), grid.low - 1), dtype=np.int64)

    def take(self, rows: NDArray[np.intp]) -> PiecewiseCurves:
        """The curves of some rows."""
        parts = (self.first, self.last, self.start, self.slope)
        return PiecewiseCurves(*(part[:, rows] for part in parts))

    def narrow(self, low: float, high: float, grid: Grid) -> NarrowCurves:
        """The same inverse for deadlines from `low` to `high` alone, made to be asked often.

        Pieces that nobody finishes by `high` cannot matter, and of those that are finished by
        `low` only the longest does. What is left is a piece or two for each rank.
        """
        parts = (self.first, self.last, self.start, self.slope)
        matters = (self.start <= high) & (self.first <= self.last)
        reach = _reach(low, *parts)
        matters &= reach < self.last
        size = matters.shape[1]
        place = np.cumsum(matters, axis=0, dtype=np.int32)
        chosen = np.flatnonzero(matters)
        target = (place.ravel()[chosen] - 1) * size + chosen % size
        moved = []
        for part, empty in zip(parts, (0.0, -1.0, np.inf, 1.0), strict=True):
            kept = np.full((int(place[-1].max()), size), empty)
            kept.ravel()[target] = part.ravel()[chosen]
            moved.append(kept)
        return NarrowCurves(self._units(reach, grid), PiecewiseCurves(*moved))


@dataclass(frozen=True)
class NarrowCurves:
    """The pieces of curves that matter between two deadlines; only the inverse is left.

    Attributes:
        least: Units finished at any of these deadlines, shape `[size]`.
        pieces: What may add to them.
    """

    least: NDArray[np.int64]
    pieces: PiecewiseCurves

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        if not len(self.pieces.first):
            return self.least
        return np.maximum(self.least, self.pieces.units_within(deadline, grid))

    def take(self, rows: NDArray[np.intp]) -> NarrowCurves:
        """The curves of some rows."""
        return NarrowCurves(self.least[rows], self.pieces.take(rows))


def _reach(
    deadline: float,
    first: NDArray[np.float64],
    last: NDArray[np.float64],
    start: NDArray[np.float64],
    slope: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The most samples of each piece by the deadline; below `first` where there are none."""
    reach = deadline - start
    late = ~(reach >= 0)  # Pieces that do not exist have no start.
    reach /= slope
    reach += 1e-9
    np.floor(reach, out=reach)
    reach += first
    reach[late] = -1.0
    return np.asarray(np.minimum(reach, last, out=reach))
