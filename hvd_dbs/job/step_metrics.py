"""A few numbers of a job that all ranks know: how well a step uses them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_dbs.job.step_parts import SeenRound, StepParts

_PARTS = 10**6
"""They travel as whole numbers, of these parts: microseconds, millionths of a step."""

_UNKNOWN = -1


@dataclass(frozen=True)
class StepMetrics:
    """What steps of a job were like; NaN: unknown.

    Attributes:
        efficiency: Part of a step in which a rank computes, mean of the ranks: 1 where nobody ever
            waits.
        waiting: Part in which it waits for slower ranks, likewise: what balancing can gain. What is
            left is communication and the rest.
        step_seconds: A step.
    """

    efficiency: float = math.nan
    waiting: float = math.nan
    step_seconds: float = math.nan

    @classmethod
    def of(cls, seen: SeenRound) -> StepMetrics:
        """Those of a round."""
        parts = StepParts.of(seen)
        return cls(1.0 - parts.waiting - parts.rest, parts.waiting, seen.step_seconds)

    @property
    def whole_numbers(self) -> tuple[int, int, int]:
        """As rank 0 sends them: ranks never have to agree on a float."""
        values = (self.efficiency, self.waiting, self.step_seconds)
        first, second, third = (
            round(_PARTS * value) if 0 <= value < _PARTS else _UNKNOWN for value in values
        )
        return first, second, third

    @classmethod
    def of_whole_numbers(cls, numbers: Sequence[int]) -> StepMetrics:
        """What `whole_numbers` were made from, to six digits.

        Example:
            >>> StepMetrics.of_whole_numbers(StepMetrics(0.5, 0.25, 0.125).whole_numbers)
            StepMetrics(efficiency=0.5, waiting=0.25, step_seconds=0.125)
        """
        return cls(*(math.nan if one == _UNKNOWN else one / _PARTS for one in numbers))


class MeanMetrics:
    """The mean over some rounds; before a round is over, that of the rounds before.

    Attributes:
        mean: Of all steps alike; parts of a step are weighted by how long it is.
    """

    def __init__(self) -> None:
        self.mean = StepMetrics()
        self.restart()

    def restart(self) -> None:
        """Other rounds follow."""
        self._num_steps, self._sums = 0, (0.0, 0.0, 0.0)

    def add(self, metrics: StepMetrics, num_steps: int) -> None:
        """A round of so many steps is over; one that measured nothing changes nothing."""
        if not math.isfinite(metrics.efficiency):
            return
        num_steps = max(num_steps, 1)
        seconds = num_steps * metrics.step_seconds
        row = (seconds * metrics.efficiency, seconds * metrics.waiting, seconds)
        busy, waiting, whole = (old + new for old, new in zip(self._sums, row, strict=True))
        self._num_steps, self._sums = self._num_steps + num_steps, (busy, waiting, whole)
        self.mean = StepMetrics(busy / whole, waiting / whole, whole / self._num_steps)
