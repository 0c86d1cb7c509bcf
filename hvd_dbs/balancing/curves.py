"""Step time as a function of the local batch size, for all ranks at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

ELASTICITY = 0.9
"""d log t / d log b where nothing else is known of a rank: a small part of its time is fixed."""

_Curves = TypeVar("_Curves", bound="RowCurves")


@dataclass(frozen=True)
class Grid:
    """The local batch sizes that are allowed, counted in units of `multiple_of`.

    Attributes:
        low: Fewest units, shape `[rows]`.
        high: Most units, shape `[rows]`.
        multiple_of: Samples in a unit.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    multiple_of: int = 1

    def take(self, rows: NDArray[np.intp]) -> Grid:
        """The grid of some rows."""
        return Grid(self.low[rows], self.high[rows], self.multiple_of)

    def fit(self, samples: NDArray[np.float64]) -> NDArray[np.int64]:
        """The most units of at most `samples`, shape `[rows]`; `low - 1` where there are none."""
        floor = np.floor(samples / self.multiple_of + 1e-9)
        floor = np.nan_to_num(floor, nan=-1.0, posinf=2.0**62, neginf=-1.0)
        return np.clip(floor, self.low - 1, self.high).astype(np.int64)


class Inverse(Protocol):
    """Tells how much each rank finishes in a given time."""

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline.

        Args:
            deadline: Seconds.
            grid: The batch sizes that count.

        Returns:
            max {u in grid: t_i(u) <= deadline}, shape `[rows]`; `grid.low - 1` where none is.
        """
        ...

    def take(self, rows: NDArray[np.intp]) -> Inverse:
        """The same for some rows."""
        ...


class TimeCurves(Inverse, Protocol):
    """What the time models of all ranks say: seconds against samples."""

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Busy seconds of each rank at its own batch size; shapes `[size]`."""
        ...

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        ...

    def take(self, rows: NDArray[np.intp]) -> TimeCurves:
        """The curves of some rows."""
        ...

    def narrow(self, low: float, high: float, grid: Grid) -> Inverse:
        """The inverse for deadlines from `low` to `high` alone, where that is cheaper."""
        ...


class RowCurves(ABC):
    """Base of curves that are a dataclass of arrays with one row per rank.

    The inverse takes them to be increasing; who knows a better one has its own.
    """

    @abstractmethod
    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Busy seconds of each rank at its own batch size; shapes `[size]`."""

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, by bisection."""
        low, high = grid.low - 1, grid.high.copy()
        while np.any(low < high):
            middle = (low + high + 1) >> 1
            meets = self.seconds(middle.astype(np.float64) * grid.multiple_of) <= deadline
            low, high = np.where(meets, middle, low), np.where(meets, high, middle - 1)
        return low

    def take(self: _Curves, rows: NDArray[np.intp]) -> _Curves:
        """The curves of some rows."""
        parts = {field.name: getattr(self, field.name)[rows] for field in fields(self)}  # type: ignore[arg-type]
        return replace(self, **parts)  # type: ignore[type-var]

    def narrow(self: _Curves, low: float, high: float, grid: Grid) -> _Curves:
        """The same curves: it would not be cheaper."""
        return self


@dataclass(frozen=True)
class AffineCurves(RowCurves):
    """t_i(b) = fixed_i + per_sample_i * b.

    Attributes:
        fixed: Seconds of an empty step, shape `[size]`.
        per_sample: Seconds that each sample adds, shape `[size]`.
    """

    fixed: NDArray[np.float64]
    per_sample: NDArray[np.float64]

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Busy seconds of each rank at its own batch size; shapes `[size]`."""
        return self.fixed + self.per_sample * batch_sizes

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        finite = np.isfinite(self.fixed) & np.isfinite(self.per_sample)
        return finite & (self.fixed >= 0) & (self.per_sample > 0)

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        return grid.fit((deadline - self.fixed) / self.per_sample)


@dataclass(frozen=True)
class OverlapCurves(RowCurves):
    """The slower of two lines: with communication that computing hides, and that it does not.

    f_i(b) = max(compute_i(b), first_bucket_i(b) + overlap_i).

    Attributes:
        compute: Seconds until a rank's own gradients are ready.
        exposed: Seconds until its communication but the last bucket is done, were the rank to
            wait for nobody: first bucket ready plus the overlappable communication.
    """

    compute: AffineCurves
    exposed: AffineCurves

    def seconds(self, batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of each rank at its own batch size; shapes `[size]`."""
        return np.maximum(self.compute.seconds(batch_sizes), self.exposed.seconds(batch_sizes))

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which ranks' curves can be used, shape `[size]`."""
        return self.compute.known & self.exposed.known

    def units_within(self, deadline: float, grid: Grid) -> NDArray[np.int64]:
        """The most units of the grid that each rank finishes by the deadline, `[size]`."""
        return np.minimum(
            self.compute.units_within(deadline, grid), self.exposed.units_within(deadline, grid)
        )

    def take(self, rows: NDArray[np.intp]) -> OverlapCurves:
        """The curves of some rows."""
        return OverlapCurves(self.compute.take(rows), self.exposed.take(rows))
