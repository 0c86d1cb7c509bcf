"""When the neighbour of a rank is busy during a fit."""

from __future__ import annotations

from typing import Any

import keras

from benchmarks.training.neighbour import RemoteNeighbour


class NeighbourTimes(keras.callbacks.Callback):
    """Starts and stops the neighbour at given steps of a fit."""

    def __init__(self, neighbour: RemoteNeighbour, begin: int, end: int) -> None:
        super().__init__()
        self._neighbour, self._begin, self._end = neighbour, begin, end
        self._num_steps = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._num_steps += 1
        if self._num_steps == self._begin:
            self._neighbour.run()
        elif self._num_steps == self._end:
            self._neighbour.pause()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._neighbour.pause()
