"""Elastic training with Keras 3: Horovod's states and callbacks.

Use it in place of `horovod.tensorflow.keras.elastic`.
"""

from __future__ import annotations

from typing import Any

import keras

from hvd_dbs.keras.model_optimizers import optimizers_of
from hvd_dbs.keras.random_streams import split_random_seeds
from hvd_dbs.tensorflow.elastic import TensorFlowKerasState, run
from hvd_dbs.tensorflow.elastic_state import ElasticState

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """State of a Keras model and its optimizer; see `TensorFlowKerasState`.

    Args:
        model: A model that is built.
        optimizer: Its optimizer, if it is not compiled into the model.
        **attributes: `balancer`, `global_batch`, `drop_slow_ranks`, `min_ranks`, and more values,
            exposed as attributes of the state.
    """

    def __init__(self, model: keras.Model, optimizer: Any = None, **attributes: Any) -> None:
        super().__init__(model, optimizer, **attributes)

    def all_optimizers(self) -> list[Any]:
        """The optimizer, and those that the model keeps as attributes, as that of a critic."""
        others = (one for one in optimizers_of(self.model) if one is not self.optimizer)
        return [self.optimizer, *others]

    def sync(self) -> None:
        """Gives all ranks the latest commit of any, and random streams of their own. Collective.

        Streams go on from those of rank 0; a step that is done again draws other numbers.
        """
        super().sync()
        split_random_seeds(self.model)


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state every few batches and at the end of each epoch.

    Args:
        state: What to commit.
        batches_per_commit: Batches between two commits. Each copies the state to host memory, and
            what a lost rank makes the others do again is at most so much.
    """

    def __init__(self, state: ElasticState, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit={batches_per_commit} must be at least 1.")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._committed = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts from here, on every rank."""
        self._committed = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits if enough batches are through."""
        if batch + 1 - self._committed >= self.batches_per_commit:
            self._committed = batch + 1
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps `state.batch`: the batches of the epoch that are through.

    With a balancer the position is the balancer's, exact in samples, and this is for your own use.
    Without one it is up to you to leave out the batches that are through.

    Args:
        state: A state with an attribute `batch`.
    """

    def __init__(self, state: ElasticState) -> None:
        super().__init__()
        self.state = state
        self._before = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Goes on from the state."""
        self._before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the batch."""
        self.state.batch = self._before + batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """The next epoch begins at its first batch."""
        self.state.batch = self._before = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps `state.epoch`: the epochs that are through, whether `fit` counts from there or from 0.

    Args:
        state: A state with an attribute `epoch`.
    """

    def __init__(self, state: ElasticState) -> None:
        super().__init__()
        self.state = state
        self._before: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Goes on from the state."""
        self._before = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Learns from the first epoch where `fit` counts from."""
        if self._before is None:
            self._before = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the epoch."""
        self.state.epoch = (self._before or 0) + epoch + 1
