"""Each rank's own time curve, all ranks computing at once and without communication."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.training import rank_curves
from benchmarks.training.models import Task
from benchmarks.training.trainers import Data
from hvd_dbs.comm.collective import Collective

_LEAST_STEPS = 2


class CurveMeasurement:
    """Measures curves of the local training step: same model, same optimizer, no communication.

    Args:
        collective: The job.
        task: Gives the model.
        data: Samples to train on.
        batch_size: Samples of all ranks in a step.
        seconds: For each point of the curve.
    """

    def __init__(
        self, collective: Collective, task: Task, data: Data, batch_size: int, seconds: float
    ) -> None:
        self._collective = collective
        self._seconds = seconds
        self._batch_size = batch_size
        self._step = _local_step(task, data)
        self._step(8)
        self.points = np.zeros((0, 0), dtype=np.int64)

    def choose_points(self) -> None:
        """Finds out where curves are to be measured. Collective."""
        even = self._batch_size // self._collective.size
        pace = self._collective.allgather(np.array([self._timed(even)]))[:, 0]
        shares = 1 / pace
        self.points = rank_curves.points_around(self._batch_size * shares / shares.sum())
        curves = rank_curves.table(self.points, self.measure(), self._batch_size)
        self.points = rank_curves.points_around(rank_curves.best_plan(curves))

    def measure(self) -> NDArray[np.float64]:
        """Seconds at each rank's points, shape `[size, k]`. Collective."""
        mine = self.points[self._collective.rank]
        curve = np.zeros(len(mine))
        for i, batch_size in enumerate(mine.tolist()):
            self._collective.allgather(np.zeros(1))  # All ranks start together.
            curve[i] = self._timed(batch_size)
        return self._collective.allgather(curve)

    def _timed(self, batch_size: int) -> float:
        """Seconds of a step, the mean of some after one that does not count."""
        self._step(batch_size)
        start, num_steps = time.monotonic(), 0
        while time.monotonic() - start < self._seconds or num_steps < _LEAST_STEPS:
            self._step(batch_size)
            num_steps += 1
        return (time.monotonic() - start) / num_steps


def _local_step(task: Task, data: Data) -> Callable[[int], None]:
    model = task.compiled_model(lambda optimizer: optimizer)
    model.make_train_function()
    signature = [tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in data]

    @tf.function(input_signature=signature)
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        model.train_step((x, y))

    def run(batch_size: int) -> None:
        step(data[0][:batch_size], data[1][:batch_size])

    return run
