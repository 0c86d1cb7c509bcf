"""What the learning rate is multiplied by in the step under way, known inside the graph."""

from __future__ import annotations

import tensorflow as tf


class LearningRateFactor:
    """A factor that goes from one value to another in a straight line, counted in iterations.

    A few numbers set once per change are enough: no work on the host per step, no retrace, and
    several steps may run in one call.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU"):
            # Start, target, and the iteration from which on it is the target.
            self._line = tf.Variable([1.0, 1.0, 0.0], dtype=tf.float64)
            self._num_iterations = tf.Variable(0, dtype=tf.int64)

    def set(self, start: float, target: float, length: float, num_iterations: int = 0) -> None:
        """Sets the line, and how many of its iterations are over."""
        self._line.assign([start, target, length])
        self._num_iterations.assign(num_iterations)

    @property
    def num_iterations(self) -> int:
        """Iterations since the line was set."""
        return int(self._num_iterations.numpy())

    def read(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The factor of the iteration under way, and of the one before it; float64 scalars."""
        with tf.device("CPU"):
            start, target, length = tf.unstack(self._line.read_value())
            iteration = tf.cast(self._num_iterations.read_value(), tf.float64)
            both = tf.stack([iteration, tf.maximum(iteration - 1.0, 0.0)])
            on_the_way = start + (target - start) * both / length
            now, before = tf.unstack(tf.where(both < length, on_the_way, target))
            # The first iteration follows one with the factor from which the line starts.
            return now, tf.where(iteration > 0.0, before, start)

    def advance(self, num_iterations: tf.Tensor | int = 1) -> None:
        """Notes that the iteration under way is over; in the graph."""
        with tf.device("CPU"):
            self._num_iterations.assign_add(tf.cast(num_iterations, tf.int64))
