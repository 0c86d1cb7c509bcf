"""The state of every rank from step to step, replayed from periods."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.simulator.periods import Periods


class Track:
    """Sums of what is on each rank, moved forward step by step.

    Args:
        rank: Rank of each entry.
        start: First step of each entry.
        stop: First step after it.
        amounts: What it adds, shape `[entries, kinds]`.
        size: Number of ranks.
    """

    def __init__(
        self,
        rank: NDArray[np.int64],
        start: NDArray[np.int64],
        stop: NDArray[np.int64],
        amounts: NDArray[np.float64],
        size: int,
    ) -> None:
        counts = np.any(amounts != 0, axis=1) & (stop > start)
        steps = np.concatenate([start[counts], stop[counts]])
        order = np.argsort(steps, kind="stable")
        self._steps = steps[order]
        self._ranks = np.concatenate([rank[counts], rank[counts]])[order]
        self._amounts = np.concatenate([amounts[counts], -amounts[counts]])[order]
        self._next = 0
        self.sums = np.zeros((size, amounts.shape[1]))

    @property
    def next_change(self) -> int:
        """The first step to come whose sums may differ; very large if there is none."""
        return int(self._steps[self._next]) if self._next < len(self._steps) else 2**62

    def advance(self, step: int) -> NDArray[np.int64]:
        """Moves to a step, not back; returns the ranks for which something changed."""
        if self.next_change > step:
            return self._ranks[:0]
        end = int(np.searchsorted(self._steps, step, side="right"))
        ranks = self._ranks[self._next : end]
        np.add.at(self.sums, ranks, self._amounts[self._next : end])
        self._next = end
        return ranks


@dataclass(frozen=True)
class Segment:
    """Steps in which nothing changes, but for noise and pauses.

    Attributes:
        start: First step.
        stop: First step after it.
        factor: Factor on the step time by rank, shape `[size]`.
        extra: Seconds added to the step by rank, shape `[size]`.
        present: Which ranks are part of the job, shape `[size]`.
        network: Factor on the time of all communication.
    """

    start: int
    stop: int
    factor: NDArray[np.float64]
    extra: NDArray[np.float64]
    present: NDArray[np.bool_]
    network: float = 1.0


class Timeline:
    """Segments in order, and loads and pauses by step.

    Reading it moves it forward; a new one starts again.

    Args:
        periods: All that happens.
        size: Number of ranks.
        num_steps: Steps of the run.
    """

    def __init__(self, periods: Periods, size: int, num_steps: int) -> None:
        self._num_steps = num_steps
        amounts = np.stack(
            [periods.log_factor, periods.extra_seconds, periods.absent, periods.network_log_factor],
            axis=1,
        )
        self._times = Track(periods.rank, periods.start, periods.stop, amounts, size)
        loads = np.stack([periods.load, periods.memory], axis=1)
        self._loads = Track(periods.rank, periods.load_start, periods.load_stop, loads, size)
        pausing = np.flatnonzero(periods.pause_seconds > 0)
        pausing = pausing[np.argsort(periods.start[pausing], kind="stable")]
        self._pause_steps = periods.start[pausing]
        self._pause_ranks = periods.rank[pausing]
        self._pause_seconds = periods.pause_seconds[pausing]
        away = periods.absent > 0
        borders = np.unique(np.concatenate([periods.start[away], periods.stop[away]]))
        self.resizes = borders[(borders > 0) & (borders < num_steps)]
        self._factor, self._present = np.ones(size), np.ones(size, dtype=bool)
        self._extra, self._network = np.zeros(size), 1.0

    def segment(self, start: int) -> Segment:
        """The segment from `start` on, which must not be before an earlier call's."""
        changed = self._times.advance(start)
        if changed.size:  # New arrays, since segments given out keep the old ones.
            sums = self._times.sums
            self._factor = self._factor.copy()
            self._factor[changed] = np.exp(sums[changed, 0])
            self._extra = np.maximum(sums[:, 1], 0.0)
            self._present = sums[:, 2] < 0.5
            self._network = float(np.exp(sums[self._present, 3].max(initial=0.0)))
        stop = min(self._times.next_change, self._num_steps)
        return Segment(start, stop, self._factor, self._extra, self._present, self._network)

    def loads(self, step: int) -> NDArray[np.float64]:
        """Processor and memory use by rank during a step, shape `[size, 2]`."""
        self._loads.advance(step)
        return self._loads.sums

    def pauses(
        self, start: int, stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Steps from `start`, ranks and seconds of the pauses in steps start to stop - 1."""
        first, last = np.searchsorted(self._pause_steps, [start, stop])
        which = slice(int(first), int(last))
        steps = self._pause_steps[which] - start
        return steps, self._pause_ranks[which], self._pause_seconds[which]
