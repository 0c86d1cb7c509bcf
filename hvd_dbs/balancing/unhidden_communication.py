"""What a step takes beyond the busy time of the ranks: the communication that nothing hides."""

from __future__ import annotations

import math
import statistics
from collections import deque

_ROUNDS_REMEMBERED = 5


class UnhiddenCommunication:
    """The same for all ranks, whatever the plan is: the median of the last rounds.

    Example:
        >>> communication = UnhiddenCommunication()
        >>> for seconds in (0.2, math.nan, -0.1, 0.3):
        ...     communication.note(seconds)
        >>> communication.seconds
        0.2
    """

    def __init__(self) -> None:
        self._rounds: deque[float] = deque(maxlen=_ROUNDS_REMEMBERED)

    @property
    def seconds(self) -> float:
        """Of a step, 0 where nothing is known."""
        return statistics.median(self._rounds) if self._rounds else 0.0

    def note(self, seconds: float) -> None:
        """What a step of a round took; NaN: unknown."""
        if math.isfinite(seconds):
            self._rounds.append(max(seconds, 0.0))

    def forget(self) -> None:
        """Other ranks from now on."""
        self._rounds.clear()
