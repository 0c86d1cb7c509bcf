"""How many samples of the step under way are this rank's, known inside the graph."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_NEVER = np.iinfo(np.int64).max
_CAPACITY = 64


class StepSamples:
    """Counts the steps of an epoch and says how many samples the rank has in each.

    The number follows from the plans and the step alone, so a few integers set once per plan are
    enough: no work on the host per step, and several steps may run in one call.
    """

    def __init__(self) -> None:
        self._num_steps = 1
        self._rows: list[tuple[int, int, int]] = []
        with tf.init_scope(), tf.device("CPU"):
            self._step = tf.Variable(0, dtype=tf.int64)
            self._last_step = tf.Variable(0, dtype=tf.int64)
            self._total = tf.Variable(0, dtype=tf.int64)
            # By plan: its first step, samples in a full step, samples in the last step.
            self._plans = tf.Variable(tf.zeros([_CAPACITY, 3], tf.int64))

    def begin_epoch(self, num_steps: int, full: int, last: int) -> None:
        """Starts an epoch at its first step.

        Args:
            num_steps: Steps of the epoch.
            full: Samples of this rank in each step but the last.
            last: Samples of this rank in the last step.
        """
        self._step.assign(0)
        self._total.assign(0)
        self._last_step.assign(num_steps - 1)
        self._rows = []
        self.change(0, full, last)

    def change(self, first: int, full: int, last: int) -> None:
        """Lets a plan hold from step `first` of this epoch on; steps under way are not touched.

        Raises:
            RuntimeError: If 64 plans are waiting for their first step.
        """
        step = int(self._step.numpy())
        waiting = [row for row in self._rows if step < row[0] < first]
        in_force = [row for row in self._rows if row[0] <= min(step, first - 1)][-1:]
        self._rows = [*in_force, *waiting, (first, full, last)]
        if len(self._rows) > _CAPACITY:
            raise RuntimeError(f"more than {_CAPACITY} plans wait for their first step.")
        table = np.full((_CAPACITY, 3), _NEVER, dtype=np.int64)
        table[: len(self._rows)] = self._rows
        self._plans.assign(table)

    def advance(self) -> tf.Tensor:
        """Samples of this rank in the step under way (int64), which is then over; in the graph."""
        with tf.device("CPU"):
            step = self._step.read_value()
            plans = self._plans.read_value()
            row = tf.reduce_sum(tf.cast(plans[:, 0] <= step, tf.int64)) - 1
            full, last = plans[row, 1], plans[row, 2]
            samples = tf.where(step < self._last_step.read_value(), full, last)
            with tf.control_dependencies([step]):
                self._step.assign_add(1)
                self._total.assign_add(samples)
            return samples

    @property
    def num_steps(self) -> int:
        """Steps of the epoch so far."""
        return int(self._step.numpy())

    @property
    def total(self) -> int:
        """Samples of this rank in the steps of the epoch so far."""
        return int(self._total.numpy())
