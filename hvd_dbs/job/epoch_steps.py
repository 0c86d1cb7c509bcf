"""What of each step is this rank's, announced to the graph before the step begins."""

from __future__ import annotations

import numpy as np

from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.step_samples import StepSamples

_STEPS_AT_ONCE = 32


class EpochSteps:
    """Keeps the graph informed of an epoch.

    Where all samples cost the same, a rank's number of them follows from plan and step, and the
    graph needs no more than the plans. Where windows are cut by cost it also depends on the
    samples: then steps are announced one by one, as far as plans are settled, and the graph
    refuses a step that was not announced.

    Args:
        clock: This rank's.

    Attributes:
        samples: What the graph reads.
    """

    def __init__(self, clock: StepClock) -> None:
        self.samples = StepSamples(clock)
        self._stage: IndexStage | None = None
        self._num_steps = 0
        self._rows: list[tuple[int, int, float]] = []

    def begin_epoch(
        self, stage: IndexStage, epoch: int, num_steps: int, batch_sizes: tuple[int, ...]
    ) -> None:
        """An epoch of so many steps is open; `announce` goes on from here."""
        self._stage, self._num_steps, self._rows = stage, num_steps, []
        full = sum(batch_sizes)
        of_all = (full, stage.part(epoch).num_left - (num_steps - 1) * full)
        if stage.is_cut_by_cost:
            self.samples.begin_epoch_announced(num_steps, of_all)
        else:
            self.samples.begin_epoch(num_steps, *self._full_and_last(stage, batch_sizes), of_all)

    def change(self, first: int, batch_sizes: tuple[int, ...]) -> None:
        """Another plan holds from a step on that is not settled yet."""
        if self._stage is not None and not self._stage.is_cut_by_cost:
            self.samples.change(first, *self._full_and_last(self._stage, batch_sizes))

    def announce(self, steps_done: int, num_ahead: int) -> None:
        """So many steps are over, and so many may run before the next call."""
        stage = self._stage
        if stage is None or not stage.is_cut_by_cost:
            return
        needed = min(steps_done + num_ahead, self._num_steps)
        known = self._rows[-1][0] + 1 if self._rows else steps_done
        if known >= needed:
            return
        last = min(needed + _STEPS_AT_ONCE, self._num_steps, stage.num_settled)
        ranks = [(step, stage.rank_step(step)) for step in range(known, last)]
        self._rows = [row for row in self._rows if row[0] >= steps_done]
        self._rows += [(step, one.num_samples, one.work) for step, one in ranks]
        self.samples.announce(np.array(self._rows, dtype=np.float64))

    def _full_and_last(self, stage: IndexStage, batch_sizes: tuple[int, ...]) -> tuple[int, int]:
        full, last = (stage.rank_step(step, batch_sizes) for step in (0, self._num_steps - 1))
        return full.num_samples, last.num_samples
