"""How many samples of the step under way are this rank's, known inside the graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.ops.step_clock import StepClock

_NEVER = np.iinfo(np.int64).max
_CAPACITY = 64
_UNKNOWN = -1
_GRAPH_COUNTS = -1
AGAIN = -1.0
"""What work is where the step under way has been asked for before."""
_WHY_UNKNOWN = (
    "The balancer does not know how many samples this rank has in this step. Give fit "
    "DynamicBatchSizeCallback(balancer); a loop of your own reads the epochs of "
    "balancer.epochs(dataset, num_epochs), or calls balancer.loop.begin_epoch, and end_steps after "
    "each step, or after as many as balancer.loop.begin_training was given. Step"
)
_NO_STEPS = np.array([[-1.0, 0.0, 0.0]])


class StepWork(NamedTuple):
    """What a rank does in a step.

    Attributes:
        num_samples: Samples that count, int64.
        work: What they cost, in samples of mean cost, float64; `AGAIN` where the step's work has
            been given already, since more than one optimizer is applied in it.
        total: Samples of all ranks that count, int64.
    """

    num_samples: tf.Tensor
    work: tf.Tensor
    total: tf.Tensor


class StepBatch(NamedTuple):
    """The global batch of a step.

    Attributes:
        num_samples: Samples of this rank that count, int64; 0 where it has padding samples only.
        total: Samples of all ranks, int64.
    """

    num_samples: tf.Tensor
    total: tf.Tensor


class StepSamples:
    """Knows how many samples the rank has in each step of an epoch.

    Where all samples cost the same, the number follows from the plans and the step alone, so a few
    integers set once per plan are enough. Otherwise each step is announced before it begins.

    Whoever runs the steps sets which one is under way; then it may be asked for as often as
    gradients are reduced in it, and need not be. Where several steps run in one call, nobody can
    set it between them: then each time it is asked for is a step.

    Args:
        clock: Receives which step is under way.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._given = 0
        self._rows: list[tuple[int, int, int]] = []
        with tf.init_scope(), tf.device("CPU"):
            self._num_begun = tf.Variable(0, dtype=tf.int64)
            self._last_step = tf.Variable(0, dtype=tf.int64)
            self._total = tf.Variable(0, dtype=tf.int64)
            self._misfit = tf.Variable(False)
            # Samples of all ranks in a full step, and in the last step.
            self._global = tf.Variable([0, 0], dtype=tf.int64)
            # First step of each plan, its samples in a full step, its samples in the last step.
            self._plans = tf.Variable(tf.fill([3, _CAPACITY], tf.constant(_UNKNOWN, tf.int64)))
            # Of steps in a row: the step, samples, and what they cost.
            self._announced = tf.Variable(_NO_STEPS, shape=[None, 3], dtype=tf.float64)

    def begin_epoch(
        self, num_steps: int, full: int, last: int, of_all: tuple[int, int] = (0, 0)
    ) -> None:
        """Starts an epoch at its first step.

        Args:
            num_steps: Steps of the epoch.
            full: Samples of this rank in each step but the last.
            last: Samples of this rank in the last step.
            of_all: Samples of all ranks in each step but the last, and in the last step.
        """
        self._given = 0
        self._clock.begin_step(_GRAPH_COUNTS)
        self._num_begun.assign(0)
        self._total.assign(0)
        self._last_step.assign(num_steps - 1)
        self._global.assign(of_all)
        self._rows = []
        self._announced.assign(_NO_STEPS)
        self.change(0, full, last)

    def begin_epoch_announced(self, num_steps: int, of_all: tuple[int, int] = (0, 0)) -> None:
        """Starts an epoch each step of which is announced; another one is an error in the graph."""
        self.begin_epoch(num_steps, _UNKNOWN, _UNKNOWN, of_all)

    def end_training(self) -> None:
        """Steps after this one belong to no training; each is an error in the graph."""
        self._given = 0
        self._clock.begin_step(_GRAPH_COUNTS)
        self._announced.assign(_NO_STEPS)
        self._plans.assign(np.full((3, _CAPACITY), _UNKNOWN, np.int64))

    def begin_step(self, step: int) -> None:
        """Sets which step of the epoch is under way, until the next call or epoch."""
        self._given = step
        self._clock.begin_step(step)

    def announce(self, rows: NDArray[np.float64]) -> None:
        """Sets what the rank does in the steps to come, instead of what was announced before.

        Args:
            rows: Of consecutive steps, the one under way first or among them: the step, the
                rank's samples, and what they cost in samples of mean cost, shape `[steps, 3]`.
        """
        self._announced.assign(rows)

    def change(self, first: int, full: int, last: int) -> None:
        """Lets a plan hold from step `first` of this epoch on; steps under way are not touched.

        Raises:
            RuntimeError: If 64 plans are waiting for their first step.
        """
        step = max(self.num_begun, self._given)
        waiting = [row for row in self._rows if step < row[0] < first]
        in_force = [row for row in self._rows if row[0] <= min(step, first - 1)][-1:]
        self._rows = [*in_force, *waiting, (first, full, last)]
        if len(self._rows) > _CAPACITY:
            raise RuntimeError(f"more than {_CAPACITY} plans wait for their first step.")
        table = np.full((3, _CAPACITY), _NEVER, dtype=np.int64)
        table[:, : len(self._rows)] = np.transpose(self._rows)
        self._plans.assign(table)

    def batch(self) -> StepBatch:
        """The global batch of the step under way, which does not count as begun; in the graph."""
        with tf.device("CPU"):
            step = self._step()
            samples, _ = self._samples_and_work(step)
            return StepBatch(samples, self._of_all(step))

    def work(self) -> StepWork:
        """What this rank does in the step under way; in the graph."""
        with tf.device("CPU"):
            step, num_begun = self._step(), self._num_begun.read_value()
            samples, work = self._samples_and_work(step)
            is_new = step >= num_begun
            with tf.control_dependencies([step, samples, num_begun]):
                self._num_begun.assign(tf.maximum(num_begun, step + 1))
                self._total.assign_add(tf.where(is_new, samples, 0))
                return StepWork(
                    tf.identity(samples), tf.where(is_new, work, AGAIN), self._of_all(step)
                )

    def note_misfit(self, is_misfit: tf.Tensor) -> None:
        """Notes whether a loss has values that belong to no sample; in the graph."""
        with tf.device("CPU"):
            self._misfit.assign(self._misfit.read_value() | is_misfit)

    def take_misfit(self) -> bool:
        """Whether a loss has had such values since the last call."""
        is_misfit = bool(self._misfit.numpy())
        self._misfit.assign(False)
        return is_misfit

    def _step(self) -> tf.Tensor:
        """The step under way."""
        given = self._clock.step_under_way()
        return tf.where(given == _GRAPH_COUNTS, self._num_begun.read_value(), given)

    def _of_all(self, step: tf.Tensor) -> tf.Tensor:
        """Samples of all ranks in a step."""
        full, last = tf.unstack(self._global.read_value())
        return tf.where(step < self._last_step.read_value(), full, last)

    def _samples_and_work(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """This rank's samples in a step, and what they cost."""
        first, full, last = tf.unstack(self._plans.read_value())
        plan = tf.reduce_sum(tf.cast(first <= step, tf.int64)) - 1
        by_plan = tf.gather(tf.where(step < self._last_step.read_value(), full, last), plan)
        steps, counts, costs = tf.unstack(self._announced.read_value(), axis=1)
        place = step - tf.cast(steps[0], tf.int64)
        num_announced = tf.size(steps, tf.int64)
        is_announced = (place >= 0) & (place < num_announced)
        place = tf.clip_by_value(place, 0, num_announced - 1)
        samples = tf.where(is_announced, tf.cast(tf.gather(counts, place), tf.int64), by_plan)
        work = tf.where(is_announced, tf.gather(costs, place), tf.cast(by_plan, tf.float64))
        known = tf.raw_ops.Assert(condition=samples >= 0, data=[_WHY_UNKNOWN, step])
        with tf.control_dependencies([] if known is None else [known]):
            return tf.identity(samples), tf.identity(work)

    @property
    def num_begun(self) -> int:
        """Steps of the epoch that have been asked for, and those before them."""
        return int(self._num_begun.numpy())

    @property
    def total(self) -> int:
        """Samples of this rank in the steps of the epoch so far."""
        return int(self._total.numpy())
