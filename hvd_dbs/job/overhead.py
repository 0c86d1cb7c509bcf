"""The time that balancing itself takes from training."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator

from hvd_dbs.host.cores import num_usable_cores

_ROUNDS_REMEMBERED = 20
"""One decision in ten costs several times as much as the others: so many rounds have some."""


class Overhead:
    """What balancing takes of this rank's time: no part of its busy seconds, but a decision's cost.

    Args:
        exclude: Receives the seconds that are no work of the step after them.
    """

    def __init__(self, exclude: Callable[[float], None]) -> None:
        self._exclude = exclude
        self._rounds: deque[float] = deque(maxlen=_ROUNDS_REMEMBERED)
        self.restart()

    @property
    def round_seconds(self) -> float:
        """What a round of decision costs this rank: the mean of the last ones."""
        return statistics.fmean(self._rounds) if self._rounds else 0.0

    def restart(self) -> None:
        """A training begins: forgets what the round under way took so far.

        A container's quota of processor time may have changed since the last one.
        """
        self._since_round = 0.0
        self._num_cores = num_usable_cores()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """What is done within is part of a round, and not of the step after it."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._since_round += seconds
        self._exclude(seconds)

    def count_beside(self, seconds: float) -> None:
        """Processor time that a round took in another thread of this rank.

        On one core all of it is taken from training. On n cores it is at most 1/n, and nothing
        where an accelerator does the work. A rank that a container limits to a part of a core waits
        for its next share of time.
        """
        self._since_round += seconds / self._num_cores

    def begin_round(self) -> None:
        """What was counted since the last round is what a round costs."""
        if self._since_round:
            self._rounds.append(self._since_round)
        self._since_round = 0.0
