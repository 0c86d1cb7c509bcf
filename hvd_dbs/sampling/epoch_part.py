"""What is left of an epoch, as if it were an epoch of its own."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from hvd_dbs.sampling.cursor import Interval


@dataclass(frozen=True)
class EpochPart:
    """The positions of an epoch's order that are not used yet, numbered from 0.

    Attributes:
        num_samples: Samples of the whole epoch.
        used: Positions used already, as intervals in ascending order that do not touch.

    Raises:
        ValueError: If a used position is not inside the epoch.

    Example:
        >>> part = EpochPart(num_samples=10, used=((0, 3), (5, 6)))
        >>> part.num_left, part.positions(1, 4)
        (6, [(4, 5), (6, 9)])
    """

    num_samples: int
    used: tuple[Interval, ...] = ()

    def __post_init__(self) -> None:
        if self.used and self.used[-1][1] > self.num_samples:
            raise ValueError(
                f"positions up to {self.used[-1][1]} are used of an epoch of {self.num_samples} "
                f"samples. Give the data set that training began with."
            )

    @cached_property
    def num_left(self) -> int:
        """Samples that are not used yet."""
        return self.num_samples - sum(end - start for start, end in self.used)

    def positions(self, start: int, count: int) -> list[Interval]:
        """Where `count` positions of this part, from `start` on, stand in the epoch's order.

        Raises:
            ValueError: If they are not inside this part.
        """
        if start < 0 or count < 0 or start + count > self.num_left:
            raise ValueError(
                f"positions [{start}, {start + count}) are not inside the {self.num_left} samples "
                f"that are left of the epoch."
            )
        firsts, ends = self._gaps
        found = []
        gap = bisect.bisect_right(ends, start)
        while count:
            begin = ends[gap - 1] if gap else 0
            length = min(count, ends[gap] - start)
            place = firsts[gap] + start - begin
            found.append((place, place + length))
            start, count, gap = start + length, count - length, gap + 1
        return found

    @cached_property
    def _gaps(self) -> tuple[list[int], list[int]]:
        """Of each stretch between used positions: its start, and samples left up to its end."""
        firsts = [0, *(end for _, end in self.used)]
        lasts = [*(start for start, _ in self.used), self.num_samples]
        lengths = [last - first for first, last in zip(firsts, lasts, strict=True)]
        return firsts, list(accumulate(lengths))
