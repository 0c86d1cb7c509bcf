"""Which plan holds at which step."""

from __future__ import annotations

import bisect

Position = tuple[int, int]
"""(epoch, step of the epoch), both from 0."""


class PlanSchedule:
    """Plans with the positions from which they hold, and how far ahead is settled.

    Positions before the horizon are settled: no later plan can change them, so their windows
    may be produced. A reader that runs ahead of training waits at the horizon.

    Example:
        >>> schedule = PlanSchedule((2, 2))
        >>> schedule.publish((3, 1), first=(1, 0))
        >>> schedule.batch_sizes_at((0, 9)), schedule.batch_sizes_at((1, 0))
        ((2, 2), (3, 1))
    """

    def __init__(self, batch_sizes: tuple[int, ...]) -> None:
        self._firsts: list[Position] = [(0, 0)]
        self._plans: list[tuple[int, ...]] = [batch_sizes]
        self.horizon: Position = (0, 0)

    def batch_sizes_at(self, position: Position) -> tuple[int, ...]:
        """The plan that holds at a position: samples by rank, shape `[size]`."""
        return self._plans[bisect.bisect_right(self._firsts, position) - 1]

    def publish(self, batch_sizes: tuple[int, ...], first: Position) -> None:
        """Lets a plan hold from `first` on.

        Raises:
            ValueError: If `first` is already settled.
        """
        if first < self.horizon:
            raise ValueError(
                f"plan {batch_sizes} from epoch {first[0]}, step {first[1]} on comes too late: "
                f"steps before epoch {self.horizon[0]}, step {self.horizon[1]} are settled."
            )
        keep = bisect.bisect_left(self._firsts, first)
        self._firsts[keep:], self._plans[keep:] = [first], [batch_sizes]

    def settle(self, horizon: Position) -> None:
        """Declares everything before `horizon` settled, and forgets plans long over."""
        self.horizon = max(self.horizon, horizon)
        over = bisect.bisect_right(self._firsts, (horizon[0] - 1, 0)) - 1
        if over > 0:
            del self._firsts[:over], self._plans[:over]
