"""How much longer ranks took in each round of a job than their curves say, and in which steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.simulator.disturbance import Disturbance
from hvd_dbs.simulator.periods import Periods


@dataclass(frozen=True, kw_only=True)
class PaceByRound(Disturbance):
    """Each rank's pace in each round, and its host's load.

    Of a round it is known how much longer its steps took in the mean and how much longer the
    shorter ones did. Where these differ, the last steps of the round are slow, or the first ones
    if the round before was slow throughout. Each is as slow as the rank was in its slowest round.
    Where that one had steps of both kinds, half of them were slow, since fewer than three quarters
    were: the lower quartile is that of the others.

    Attributes:
        ends: First step after each round, shape `[rounds]`.
        factors: On the step time in the mean, shape `[rounds, size]`.
        usual: On that of the shorter steps, at most `factors`, likewise.
        loads: Processor use by others, 0 to 1, likewise.
    """

    ends: NDArray[np.int64]
    factors: NDArray[np.float64]
    usual: NDArray[np.float64]
    loads: NDArray[np.float64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Steps of each round, shape `[rounds]`."""
        return np.diff(self.ends, prepend=0)

    def slow_steps(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """How many steps of each round are slow, and factors on `usual` there.

        Both have shape `[rounds, size]`; 0 and 1 where all steps are alike.
        """
        longer, lengths = self.factors / self.usual - 1, self.lengths[:, np.newaxis]
        slowest = np.max(self.usual * (1 + np.where(longer > 0, 2 * longer, 0)), axis=0)
        part = longer / np.maximum(slowest / self.usual - 1, longer + 1e-9)
        steps = np.where(longer > 0, np.maximum(np.rint(part * lengths), 1), 0).astype(np.int64)
        return steps, 1 + longer * lengths / np.maximum(steps, 1)

    def newest(self, first: int) -> PaceByRound:
        """What follows from this step on, which is step 0 then."""
        kept = self.ends > first
        return PaceByRound(
            ends=self.ends[kept] - first,
            factors=self.factors[kept],
            usual=self.usual[kept],
            loads=self.loads[kept],
        )

    def periods(self, size: int, num_steps: int, random: np.random.Generator) -> Periods:
        """A period for each rank and round, and one for its slow steps."""
        rounds, ranks = np.divmod(np.arange(self.factors.size), size)
        steps, factors = self.slow_steps()
        before = np.vstack([np.ones(size), self.usual[:-1]])
        goes_on = (before > self.usual * np.sqrt(factors)).ravel()
        steps, factors, ends = steps.ravel(), factors.ravel(), self.ends[rounds]
        starts, some = ends - self.lengths[rounds], np.flatnonzero(steps)
        first = np.where(goes_on, starts, ends - steps)
        whole = Periods.of(
            ranks, starts, ends, log_factor=np.log(self.usual.ravel()), load=self.loads.ravel()
        )
        slow = Periods.of(
            ranks[some],
            first[some],
            (first + steps)[some],
            log_factor=np.log(factors[some]),
        )
        return Periods.join([whole, slow])
