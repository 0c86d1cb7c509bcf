"""All ranks start from the same weights."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_dbs.keras.model_build import build_for_fit
from hvd_dbs.keras.random_streams import split_random_seeds
from hvd_dbs.keras.xla import turn_off_xla

_NAME = "hvd_dbs.broadcast.num_variables"


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the model and optimizer of one rank, before the first step.

    A model that its first batch would build is built before. Where that cannot be, since the model
    has a `train_step` and no `call`, all ranks get what the first step has created behind it, as in
    stock Horovod. Random layers draw different numbers on each rank, by seeds that are made of
    those of `root_rank`; see `split_random_seeds`.

    Args:
        root_rank: Whose weights everybody gets.
        device: Kept for Horovod's signature; variables stay where they are.

    Raises:
        ValueError: On all ranks when training begins, if their models differ in the number of
            variables, or one that is not built is trained otherwise than by `fit`.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Broadcasts weights and optimizer state."""
        turn_off_xla(self.model)
        is_built = build_for_fit(self.model)
        with tf.device("CPU"):
            row = tf.constant([[len(self._variables()), int(is_built)]])
            rows = hvd.allgather(row, name=_NAME).numpy()
        counts, are_built = rows[:, 0].tolist(), bool(rows[:, 1].all())
        are_alike = len(set(counts)) == 1
        if are_built and not are_alike:
            raise ValueError(
                f"Model and optimizer have {counts} variables on ranks 0 to {len(counts) - 1}. "
                f"Build and compile the same model on every rank."
            )
        if are_alike:
            self._broadcast()
        if not are_built:
            self._broadcast_behind_first_step()
        split_random_seeds(self.model, self.root_rank)

    def _broadcast_behind_first_step(self) -> None:
        step = self.model.train_function
        if step is None:
            raise ValueError(
                "The model is not built, and no fit is under way whose data could build it. Build "
                "it before, on all ranks: call it on a batch."
            )

        def first_step(iterator: Any) -> Any:
            self.model.train_function = step
            logs = step(iterator)
            self._broadcast()
            return logs

        # Not `on_train_batch_end`: callbacks that stand before this one look at the weights.
        self.model.train_function = first_step

    def _broadcast(self) -> None:
        hvd.broadcast_variables(self._variables(), root_rank=self.root_rank)

    def _variables(self) -> list[tf.Variable]:
        optimizer = self.model.optimizer
        of_optimizer = [] if optimizer is None else optimizer.variables
        return [variable.value for variable in [*self.model.weights, *of_optimizer]]
