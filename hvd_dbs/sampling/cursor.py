"""Where training stands in the samples, whatever the plan and the number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Interval = tuple[int, int]
"""Positions from the first number up to, not including, the second."""


@dataclass(frozen=True)
class Cursor:
    """The epoch that training is in, and which positions of its order are used already.

    Positions, not steps: what is left can be cut anew for another batch size and another number
    of ranks, and no sample is repeated or lost.

    Attributes:
        epoch: Number of the epoch, from 0.
        used: Positions used already, as intervals in ascending order that do not touch.

    Raises:
        ValueError: If a number is negative, or the intervals are empty, touch or overlap.

    Example:
        >>> Cursor(epoch=3, used=((0, 4), (8, 10))).num_used
        6
    """

    epoch: int = 0
    used: tuple[Interval, ...] = ()

    def __post_init__(self) -> None:
        if self.epoch < 0:
            raise ValueError(f"epoch={self.epoch} of a cursor must not be negative.")
        before = -1
        for start, end in self.used:
            if not before < start < end:
                raise ValueError(
                    f"used={self.used} of a cursor must be intervals in ascending order that do "
                    f"not touch, from 0 on."
                )
            before = end

    @property
    def num_used(self) -> int:
        """Samples of the epoch that are used already."""
        return sum(end - start for start, end in self.used)

    def used_in(self, epoch: int) -> tuple[Interval, ...]:
        """The used positions of an epoch: none of any other than the one this stands in."""
        return self.used if epoch == self.epoch else ()


def merge_intervals(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The same positions as intervals in ascending order that do not touch, without empty ones.

    Example:
        >>> merge_intervals([(4, 6), (0, 2), (2, 3), (9, 9)])
        ((0, 3), (4, 6))
    """
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)
