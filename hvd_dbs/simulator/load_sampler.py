"""The load of hosts as a job knows it: sampled beside the steps, so some time ago."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.simulator.timeline import Timeline

STREAM = 4
"""Which of the random streams of a scenario is that of the sampler."""


class LoadSampler:
    """Every rank's last sample: the mean load between two times that are a period apart.

    Ranks began to sample at different times. What they read has noise, a draw for each sample.

    Args:
        timeline: Knows the loads by step; this one is not used for anything else.
        size: Number of ranks.
        period_seconds: From one sample to the next; 0: the load of the last step is known.
        noise: Standard deviation of a reading.
        seed: Of phases and noise.

    Attributes:
        latest: Processor and memory use by rank, NaN before the first sample; shape `[size, 2]`.
    """

    def __init__(
        self, timeline: Timeline, size: int, period_seconds: float, noise: float, seed: int
    ) -> None:
        self._timeline, self._period, self._noise = timeline, period_seconds, noise
        self._random = np.random.Generator(np.random.SFC64([seed, STREAM]))
        self._elapsed = self._random.random(size) * period_seconds
        self._covered, self._sums = np.zeros(size), np.zeros((size, 2))
        self.latest = np.full((size, 2), np.nan)

    def advance(self, start: int, step_seconds: NDArray[np.float64]) -> None:
        """Steps from `start` on are over, which took so long; shape `[steps]`."""
        for step, seconds in enumerate(step_seconds.tolist(), start):
            self._pass(self._timeline.loads(step), seconds)

    def _pass(self, loads: NDArray[np.float64], seconds: float) -> None:
        if not self._period:
            self.latest = loads + self._noise * self._random.standard_normal(loads.shape)
            return
        self._elapsed += seconds
        self._covered += seconds
        self._sums += loads * seconds
        due = np.flatnonzero(self._elapsed >= self._period)
        if not due.size:
            return
        # More than one sample may have been taken within a step: the last one is known.
        after = np.mod(self._elapsed[due], self._period)[:, np.newaxis]
        whole_step = (self._elapsed[due] >= 2 * self._period)[:, np.newaxis]
        before = np.maximum(self._covered[due][:, np.newaxis] - after, 1e-12)
        means = np.where(whole_step, loads[due], (self._sums[due] - loads[due] * after) / before)
        self.latest[due] = means + self._noise * self._random.standard_normal(means.shape)
        self._elapsed[due] = self._covered[due] = after[:, 0]
        self._sums[due] = loads[due] * after
