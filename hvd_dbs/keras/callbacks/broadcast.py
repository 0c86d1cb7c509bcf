"""All ranks start from the same weights."""

from __future__ import annotations

import horovod.tensorflow as hvd
import keras

from hvd_dbs.keras.xla import turn_off_xla


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the model and optimizer of one rank, before the first step.

    Seeds of random layers stay each rank's own, so that dropout differs between ranks.

    Args:
        root_rank: Whose weights everybody gets.
        device: Kept for Horovod's signature; variables stay where they are.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Broadcasts weights and optimizer state."""
        turn_off_xla(self.model)
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        variables = [variable.value for variable in [*self.model.weights, *optimizer.variables]]
        hvd.broadcast_variables(variables, root_rank=self.root_rank)
