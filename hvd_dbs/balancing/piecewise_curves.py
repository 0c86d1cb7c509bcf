"""Curves made of straight pieces, which may jump and fall between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import Grid, RowCurves


@dataclass(frozen=True)
class PiecewiseCurves(RowCurves):
    """t_i(b) = seconds + slope * (b - first) on the piece first <= b <= last that holds b.

    All fields have shape `[size, pieces]`. The pieces of a rank cover each whole number of
    samples from 0 on once; a piece with first > last is empty.

    Attributes:
        first: Fewest samples of the piece.
        last: Most samples of the piece; inf for the one without end.
        start: Seconds at `first`.
        slope: Seconds that each further sample adds; not negative unless first == last.
    """

    first: NDArray[np.float64]
    last: NDArray[np.float64]
    start: NDArray[np.float64]
    slope: NDArray[np.float64]

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Busy seconds of each rank at its own batch size; shapes `[size]`."""
        samples = batch_sizes[:, np.newaxis]
        piece = np.argmax((self.first <= samples) & (samples <= self.last), axis=1)
        rows = np.arange(len(batch_sizes))
        into = batch_sizes - self.first[rows, piece]
        return np.asarray(self.start[rows, piece] + self.slope[rows, piece] * into)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        empty = self.first > self.last
        fine = (self.start > 0) & np.isfinite(self.start) & (self.slope >= 0)
        return np.asarray(np.all(empty | fine, axis=1))

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        unit = grid.multiple_of
        low, high = grid.low[:, np.newaxis], grid.high[:, np.newaxis]
        slack = deadline - self.start
        reach = np.minimum(self.first + np.floor(slack / self.slope + 1e-9), self.last)
        reach = np.minimum(np.floor(reach / unit), high)
        fits = (slack >= 0) & (reach >= low) & (reach * unit >= self.first)
        most = np.where(fits, reach, low - 1).max(axis=1)
        return np.asarray(most, dtype=np.int64)
