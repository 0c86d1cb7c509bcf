"""The time that balancing itself takes from training."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.cores import num_cores

_ROUNDS_REMEMBERED = 5


class OwnTime:
    """What decisions take between the steps of this rank: nobody's pace, but a cost."""

    def __init__(self) -> None:
        self._rounds: deque[float] = deque(maxlen=_ROUNDS_REMEMBERED)
        self._num_cores = num_cores()
        self.restart()

    @property
    def round_seconds(self) -> float:
        """What a round of decision costs this rank: the median of the last ones."""
        return statistics.median(self._rounds) if self._rounds else 0.0

    def restart(self) -> None:
        """Counts steps from here on; the clock has been drained."""
        self._since_round = 0.0
        self._num_steps = 0
        self._num_drained = 0
        self._before_step: dict[int, float] = {}

    def count_steps(self, num_steps: int) -> None:
        """So many steps were run."""
        self._num_steps += num_steps

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """What is done within is part of a round, and of the busy time of the step behind it."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._since_round += seconds
        before = self._before_step.get(self._num_steps, 0.0)
        self._before_step[self._num_steps] = before + seconds

    def count_beside(self, seconds: float) -> None:
        """Processor time that a round took in another thread of this rank.

        A rank that trains on one core has it from there. With more of them it is a part at most,
        and nothing where an accelerator does the work.
        """
        self._since_round += seconds / self._num_cores

    def begin_round(self) -> None:
        """What was counted since the last round is what a round costs."""
        if self._since_round:
            self._rounds.append(self._since_round)
        self._since_round = 0.0

    def subtract_from(self, busy_seconds: NDArray[np.float64]) -> None:
        """Takes it out of the steps since the last call, shape `[steps]`, in place."""
        for i in range(len(busy_seconds)):
            busy_seconds[i] -= self._before_step.pop(self._num_drained + i, 0.0)
        self._num_drained += len(busy_seconds)
