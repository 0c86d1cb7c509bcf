"""Curves known at each batch size, such as measured ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import Grid, RowCurves


@dataclass(frozen=True)
class TableCurves(RowCurves):
    """Curves known at each batch size, of any shape.

    Attributes:
        table: Seconds at 0, 1, ... samples, shape `[size, most + 1]`; NaN where that batch size
            is not possible.
    """

    table: NDArray[np.float64]

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of each rank at its own batch size; shapes `[size]`; NaN outside the table."""
        columns = batch_sizes.astype(np.int64)
        inside = (columns >= 0) & (columns < self.table.shape[1])
        found = self.table[np.arange(len(columns)), np.where(inside, columns, 0)]
        return np.where(inside, found, np.nan)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        return np.asarray(np.any(self.table > 0, axis=1))

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        table = self.table[:, :: grid.multiple_of]
        units = np.arange(table.shape[1])
        allowed = (units >= grid.low[:, np.newaxis]) & (units <= grid.high[:, np.newaxis])
        within = allowed & (table <= deadline)
        last = table.shape[1] - 1 - np.argmax(within[:, ::-1], axis=1)
        return np.where(np.any(within, axis=1), last, grid.low - 1)
