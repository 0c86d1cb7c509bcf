"""What ranks finish by deadlines between two: the inverse of curves of straight pieces."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import Grid


@dataclass(frozen=True)
class NarrowCurves:
    """The pieces of curves that matter between two deadlines; only the inverse is left.

    On a piece, t(b) = start + slope * (b - first) for first <= b <= last.

    Attributes:
        least: Units finished at any of these deadlines, shape `[size]`.
        rank: Whose each piece is, shape `[pieces]`.
        first: Fewest samples of the piece, shape `[pieces]`; likewise those that follow.
        last: Most samples, no more than the grid allows.
        start: Seconds at the fewest.
        slope: Seconds that each further sample adds; positive.
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
