"""All ranks start from the same weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_dbs.keras.callback_checks import callbacks_of_fit, require_same_fit
from hvd_dbs.keras.callbacks.dynamic_batch_size import DynamicBatchSizeCallback
from hvd_dbs.keras.initial_epoch import require_same_epoch
from hvd_dbs.keras.local_variables import slots_of, variable_reference
from hvd_dbs.keras.model_build import build_for_fit
from hvd_dbs.keras.model_optimizers import balancer_of, optimizers_of, training_variables
from hvd_dbs.keras.random_streams import split_random_seeds
from hvd_dbs.keras.reducing_optimizer import check_data
from hvd_dbs.keras.xla import turn_off_xla
from hvd_dbs.tensorflow.gradient_reducer import require_followed
from hvd_dbs.tensorflow.variables import broadcast_variables, tensorflow_variable

_NAME = "hvd_dbs.broadcast.is_built"


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the model and optimizer of one rank, before the first step.

    A model that its first batch would build is built before. Where that cannot be, since the model
    has a `train_step` and no `call`, all ranks get what the first step has created after it, as in
    stock Horovod. Variables are matched by their place in model and optimizer, not by name. Random
    layers draw different numbers on each rank, by seeds that are made of those of `root_rank`; see
    `split_random_seeds`.

    Args:
        root_rank: Whose weights everybody gets.
        device: Kept for Horovod's signature; variables stay where they are.
        local_variables: A variable, or several, that each rank keeps its own of, as well as what
            the optimizer keeps for them; of Keras or TensorFlow.

    Raises:
        ValueError: On all ranks when training begins, if their models differ in number, shapes or
            types of variables, or one that is not built is trained otherwise than by `fit`; or if
            `fit` has data of a balancer and an optimizer has none; where an optimizer has a
            balancer, if ranks have other callbacks or lack `DynamicBatchSizeCallback`.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any | Iterable[Any] | None = None,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self._has_begun = False
        self._local: set[Any] = set()
        if local_variables is None:
            local_variables = []
        elif isinstance(tensorflow_variable(local_variables), tf.Variable):
            local_variables = [local_variables]
        for variable in local_variables:
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Each rank keeps its own values of a variable.

        Args:
            var: A variable of Keras or TensorFlow.

        Raises:
            TypeError: If it is none.
        """
        self._local.add(variable_reference(var))

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Broadcasts weights and optimizer state."""
        self._has_begun = False
        for optimizer in optimizers_of(self.model):
            check_data(optimizer)
        self._require_same_fit()
        turn_off_xla(self.model)
        is_built = build_for_fit(self.model)
        with tf.device("CPU"):
            rows = hvd.allgather(tf.constant([[len(self._variables()), int(is_built)]]), name=_NAME)
        counts, are_built = set(rows[:, 0].numpy().tolist()), bool(tf.reduce_all(rows[:, 1] > 0))
        if are_built or len(counts) == 1:
            self._broadcast()
        if not are_built:
            self._broadcast_after_first_step()
        split_random_seeds(self.model, self.root_rank)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Checks that all ranks begin in the same epoch, and that a balancer follows it."""
        if not self._has_begun:
            self._has_begun = True
            if (balancer := balancer_of(self.model)) is not None:
                require_followed(balancer)  # Here, or ranks that have its callback deadlock.
            with tf.device("CPU"):
                epochs = hvd.allgather(tf.constant([epoch]), name=f"{_NAME}.epoch").numpy()
            require_same_epoch(epochs.tolist())

    def _require_same_fit(self) -> None:
        """Meets the ranks that do not have this callback where DynamicBatchSizeCallback does."""
        found = (c for c in callbacks_of_fit() if isinstance(c, DynamicBatchSizeCallback))
        balancer = next((one._balancer for one in found), balancer_of(self.model))
        if balancer is not None:
            require_same_fit(self, balancer.collective)

    def _broadcast_after_first_step(self) -> None:
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
        broadcast_variables(self._variables(), root_rank=self.root_rank)

    def _variables(self) -> list[keras.Variable]:
        """The model's and its optimizers' variables, but for those that each rank keeps."""
        variables = training_variables(self.model)
        if not self._local:
            return variables
        slots = [v for one in optimizers_of(self.model) for v in slots_of(one, self._local)]
        kept = self._local | {variable_reference(slot) for slot in slots}
        return [one for one in variables if variable_reference(one) not in kept]
