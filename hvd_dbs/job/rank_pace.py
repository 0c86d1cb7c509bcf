"""What the steps of this rank took since the last round, and whether they signal a change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.change_signal import STEPS_WATCHED, ExpectedSteps
from hvd_dbs.balancing.curves import ELASTICITY
from hvd_dbs.balancing.measurement import typical_seconds, typical_steps
from hvd_dbs.balancing.order_statistics import MEDIAN, QUARTILE, lower_value
from hvd_dbs.job import communication
from hvd_dbs.ops.step_clock import StepClock, StepTimes

_NEAR = 0.25
"""Steps whose work differs by more than this from a batch size say little about it."""


@dataclass(frozen=True)
class RoundSteps:
    """The steps of a round.

    Attributes:
        times: What the clock saw of them, in the order in which it was read.
        no_pace: Of the first ones, which do not say what the rank's pace is now; shape `[k]`.
        is_first: Which are the first at a batch size that is new to the rank, shape `[steps]`.
        has_changed: Whether the last ones are far from what the round before measured.
    """

    times: tuple[StepTimes, ...]
    no_pace: NDArray[np.bool_]
    is_first: NDArray[np.bool_]
    has_changed: bool

    @property
    def busy_seconds(self) -> NDArray[np.float64]:
        """NaN where a step does not count, shape `[steps]`."""
        seconds = self._all("busy_seconds")
        seconds[: len(self.no_pace)][self.no_pace] = np.nan
        return seconds

    @property
    def num_samples(self) -> NDArray[np.float64]:
        """Samples, or what they cost in samples of mean cost, shape `[steps]`."""
        return self._all("num_samples")

    @property
    def data_seconds(self) -> NDArray[np.float64]:
        """Part of each step in which it waited for its data, NaN where unknown, `[steps]`."""
        return self._all("data_seconds")

    @property
    def whole_seconds(self) -> NDArray[np.float64]:
        """Seconds of each step, busy and waiting, NaN where unknown, `[steps]`."""
        return self._all("busy_seconds") + self._all("wait_seconds")

    @property
    def first_bucket_seconds(self) -> NDArray[np.float64]:
        """Until the first bucket of gradients was ready, NaN where unknown, `[steps]`."""
        return self._all("first_bucket_seconds")

    @property
    def communication_row(self) -> NDArray[np.float64]:
        """What the rank tells the others of its buckets, as `communication.row_of` gives it."""
        counts = np.isfinite(self._all("busy_seconds"))
        overlap_seconds = np.where(counts, self._all("overlap_seconds"), np.nan)
        return communication.row_of(overlap_seconds, self._all("last_bucket_seconds"))

    def _all(self, name: str) -> NDArray[np.float64]:
        return np.concatenate([np.zeros(0), *(getattr(times, name) for times in self.times)])


class Pace(NamedTuple):
    """What steps of a rank have taken; NaN: unknown.

    Attributes:
        busy_seconds: Own work in a step.
        num_steps: Of how many steps; 0: of the first one at a batch size, which may take longer.
        quartile_seconds: Lower quartile of own work in these; NaN: unknown.
        median_seconds: Its median, the lower one of two; NaN: unknown.
        step_seconds: These steps as a whole, waiting for the others included.
        first_bucket_seconds: Own work in a step until the first bucket of gradients is ready.
        input_seconds: Part of the work in which a step waits for its data, mean.
    """

    busy_seconds: float
    num_steps: int
    quartile_seconds: float
    median_seconds: float
    step_seconds: float
    first_bucket_seconds: float
    input_seconds: float = math.nan


class RankPace:
    """Reads the clock.

    The rank's pace is computed from its steps beside the training, by one thread at a time.
    Whether the last steps signal a change is checked between the steps, while no round is under
    way.

    Args:
        clock: This rank's.

    Attributes:
        is_cut_by_cost: Whether windows are cut by cost, so that a plan's batch size is only about
            what a step costs.
        job_size: Ranks of the job.
        expected: What the next steps are expected to take; None: nothing is a change.
    """

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self.is_cut_by_cost = False
        self.job_size = 1
        self.expected: ExpectedSteps | None = None
        self._band: tuple[ExpectedSteps | None, float, float, float] = None, 0.0, 0.0, 0.0
        self._drained: tuple[StepTimes, ...] = ()
        self._no_pace = np.zeros(0, dtype=np.bool_)
        self._has_changed = False
        self._used: set[float] = set()

    def restart(self) -> None:
        """Forgets the steps that were run so far, but not what is expected."""
        self.take()
        self.take_signal()

    def take_signal(self) -> bool:
        """Whether a rank has signalled a change since the last call."""
        return self.clock.take_signal()

    def look(self, num_steps: int) -> None:
        """Signals to the other ranks, from the next step on, if this rank has changed.

        If so, the next round uses the far steps alone, and those still to come: the mean with the
        steps before is nobody's pace.

        Args:
            num_steps: Steps since the last call.
        """
        expected = self.expected
        if expected is None or self._has_changed or not self.clock.sends_signals:
            return
        newest = self.clock.peek(STEPS_WATCHED)
        if not any(self._is_far(expected, *step) for step in newest[-num_steps:]):
            return
        busy_seconds, work = np.array(newest).T[:, :, np.newaxis]
        changed = expected.changes(busy_seconds, work, self.job_size)[:, 0]
        if changed.any():
            before = self.clock.drain()
            self._drained = (before,)
            self._no_pace = np.ones(len(before.num_samples), dtype=np.bool_)
            self._no_pace[-len(changed) :] = ~changed
            self._has_changed = True
            self.clock.send_signal(True)

    def take(self) -> RoundSteps:
        """The steps that nobody has taken yet."""
        times = *self._drained, self.clock.drain()
        is_first = self._note_use(np.concatenate([one.num_samples for one in times]))
        steps = RoundSteps(times, self._no_pace, is_first, self._has_changed)
        if steps.has_changed:
            self.clock.send_signal(False)
        self._drained, self._no_pace, self._has_changed = (), np.zeros(0, dtype=np.bool_), False
        return steps

    def measure(self, steps: RoundSteps, batch_size: int) -> Pace:
        """What a step at a batch size has taken since the last round.

        Where windows are cut by cost, those that steps of about that work would have taken at it.

        Args:
            steps: Those taken since the last call.
            batch_size: This rank's in the last of them.
        """
        busy_seconds, work = steps.busy_seconds, steps.num_samples
        chosen = self._chosen(busy_seconds, work, batch_size)
        # Kernels tune themselves in the first steps of a batch size: they are not its pace. Cut by
        # cost, no two steps have the same one.
        is_new = np.isnan(busy_seconds[:1]).any() or not (self.is_cut_by_cost or chosen.all())
        is_new |= steps.is_first.any()
        warmup = 2 if is_new and not steps.has_changed else 0
        counts = chosen & np.isfinite(busy_seconds)
        settled = counts & ~steps.is_first
        is_settled = settled.any()
        counts = settled if is_settled else counts
        whole_seconds = np.where(counts, steps.whole_seconds, np.nan)[chosen]
        factors = (batch_size / work[chosen]) ** ELASTICITY
        first_seconds = np.where(counts, steps.first_bucket_seconds, np.nan)[chosen] * factors
        input_seconds = np.where(counts, steps.data_seconds, np.nan)[chosen] * factors
        busy_seconds = np.where(counts, busy_seconds, np.nan)[chosen] * factors
        typical = typical_steps(busy_seconds, warmup)
        seconds = float(np.mean(typical)) if typical.size else math.nan
        column = np.reshape(typical if typical.size else np.nan, (-1, 1))
        quartile, median = (float(lower_value(column, parts)[0]) for parts in (QUARTILE, MEDIAN))
        first = min(typical_seconds(first_seconds, warmup), seconds)
        num_steps = typical.size if is_settled else 0
        # The other ranks have waited for this one, or this one for their first steps.
        whole = typical_seconds(whole_seconds, warmup) if is_settled else math.nan
        waits = input_seconds[np.isfinite(input_seconds)]
        # The mean: a pipeline that is late in every tenth step is late.
        waited = min(float(np.mean(waits)), seconds) if waits.size else math.nan
        return Pace(seconds, num_steps, quartile, median, whole, first, waited)

    def _note_use(self, work: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which steps are the first at a batch size, and not at the first of all, `[steps]`."""
        is_first = np.zeros(work.size, dtype=np.bool_)
        if work.size and not self.is_cut_by_cost:
            known = self._used or {float(work[0])}
            sizes, starts = np.unique(work, return_index=True)
            is_first[starts] = [size not in known for size in sizes.tolist()]
            self._used = known.union(sizes.tolist())
        return is_first

    def _is_far(self, expected: ExpectedSteps, busy_seconds: float, work: float) -> bool:
        """Whether a step is far from what is expected."""
        if self._band[0] is not expected or self._band[1] != work:
            low, high = expected.band(np.array([work]), self.job_size)
            self._band = expected, work, float(low[0]), float(high[0])
        return busy_seconds < self._band[2] or busy_seconds > self._band[3]

    def _chosen(
        self, busy_seconds: NDArray[np.float64], work: NDArray[np.float64], batch_size: int
    ) -> NDArray[np.bool_]:
        """Which steps were run at a batch size."""
        if not self.is_cut_by_cost:
            return np.asarray(work == batch_size)
        work = np.where(np.isfinite(busy_seconds), work, 0.0)
        with np.errstate(divide="ignore"):
            near = np.abs(np.log(work / batch_size)) < _NEAR
        return np.asarray(near if near.any() else work > 0)
