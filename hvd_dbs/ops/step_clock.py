"""A rank's own time, taken inside the training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

_CAPACITY = 4096


@dataclass(frozen=True)
class StepTimes:
    """What a clock saw, step by step.

    Attributes:
        busy_seconds: From the start of the step, data wait included, until the rank's own
            gradients were ready; NaN where the step does not count; shape `[steps]`.
        wait_seconds: From then until the reduced gradients were back, shape `[steps]`.
        num_samples: Samples that the rank contributed, shape `[steps]`.
    """

    busy_seconds: NDArray[np.float64]
    wait_seconds: NDArray[np.float64]
    num_samples: NDArray[np.float64]


class StepClock:
    """Splits each step into busy and wait seconds.

    All ranks leave a step together, so the time of a whole step tells nothing about a rank. The
    clock notes when the last local gradient is ready and when the last reduced one is back:
    busy = ready(k) - back(k-1), wait = back(k) - ready(k). A step that follows a `restart` has no
    back(k-1) and does not count; the most recent 4096 steps are kept.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU"):
            self._times = tf.Variable(tf.fill([_CAPACITY, 3], tf.constant(0.0, tf.float64)))
            self._back = tf.Variable(float("nan"), dtype=tf.float64)
            self._num_steps = tf.Variable(0, dtype=tf.int64)

    def restart(self) -> None:
        """Leaves the step under way out: it holds more than a step's work.

        Called where an epoch starts, after a validation, and while a step is being traced (then
        the assignment is lifted out of the graph, so it happens once, for the slow first step).
        """
        with tf.init_scope():
            self._back.assign(float("nan"))

    def ready(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The time at which the last of these local gradients is ready; in the graph."""
        with tf.control_dependencies(list(gradients)), tf.device("CPU"):
            return tf.timestamp()

    def back(
        self, ready: tf.Tensor, reduced: Sequence[tf.Tensor], num_samples: tf.Tensor
    ) -> None:
        """Notes a step whose reduced gradients these are; in the graph."""
        with tf.control_dependencies([ready, *reduced]), tf.device("CPU"):
            now = tf.timestamp()
            row = tf.stack([ready - self._back, now - ready, tf.cast(num_samples, tf.float64)])
            self._times.scatter_nd_update([[self._num_steps % _CAPACITY]], [row])
            self._num_steps.assign_add(1)
            self._back.assign(now)

    def drain(self) -> StepTimes:
        """The steps since the last call, oldest first."""
        num_steps = int(self._num_steps.numpy())
        self._num_steps.assign(0)
        times = self._times.numpy()
        if num_steps > _CAPACITY:
            times = np.roll(times, -(num_steps % _CAPACITY), axis=0)
        times = times[: min(num_steps, _CAPACITY)]
        return StepTimes(times[:, 0].copy(), times[:, 1].copy(), times[:, 2].copy())
