"""How many samples of the step under way are this rank's, known inside the graph."""

from __future__ import annotations

import tensorflow as tf


class StepSamples:
    """Counts the steps of an epoch and says how many samples the rank has in each.

    The number follows from the plan and the step alone, so a few integers set once per plan are
    enough: no work on the host per step, and several steps may run in one call.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU"):
            # step of the epoch, steps of the epoch, samples in a full step, in the last step
            self._step = tf.Variable(0, dtype=tf.int64)
            self._plan = tf.Variable([1, 0, 0], dtype=tf.int64)

    def begin_epoch(self, num_steps: int, full: int, last: int) -> None:
        """Starts an epoch at its first step.

        Args:
            num_steps: Steps of the epoch.
            full: Samples of this rank in each step but the last.
            last: Samples of this rank in the last step.
        """
        self._step.assign(0)
        self._plan.assign([num_steps, full, last])

    def advance(self) -> tf.Tensor:
        """Samples of this rank in the step under way (int64), which is then over; in the graph."""
        with tf.device("CPU"):
            step = self._step.read_value()
            num_steps, full, last = tf.unstack(self._plan.read_value())
            with tf.control_dependencies([step]):
                self._step.assign_add(1)
            return tf.where(tf.equal(step % num_steps, num_steps - 1), last, full)
