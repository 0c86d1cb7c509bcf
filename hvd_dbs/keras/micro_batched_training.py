"""Keras's training step, computed in micro-batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_dbs.job.session import Session
from hvd_dbs.keras.internals import (
    all_layers,
    has_step_of_keras,
    is_compiled_with_xla,
    loss_of_step,
    note_loss,
    predictions_of_step,
)
from hvd_dbs.keras.micro_batches import MicroBatchedStep
from hvd_dbs.keras.random_streams import MicroBatchSeeds
from hvd_dbs.tensorflow.global_batch import GlobalBatch, current_global_batch

_LOGGER = logging.getLogger(__name__)

MICRO_BATCHES = "_hvd_dbs_micro_batches"
"""Attribute of a model's training step: what computes it in micro-batches."""

AddedLosses = Callable[[keras.Model, GlobalBatch], AbstractContextManager[None]]


class MicroBatchedTraining:
    """Does what `keras.Model.train_step` does, in micro-batches, or compiled by XLA, or both.

    Args:
        model: A compiled model.
        plain: Its own training step.
        session: Knows the samples of each step and the size of a micro-batch.
        added_losses: Within it, losses of `add_loss` are those of the global batch.
        on_losses: Called with each batch whose losses have been computed.

    Attributes:
        plain: The model's own training step.
    """

    def __init__(
        self,
        model: keras.Model,
        plain: Callable[[Any], Any],
        session: Session,
        added_losses: AddedLosses,
        on_losses: Callable[[GlobalBatch], None],
    ) -> None:
        self._model, self.plain, self._session = model, plain, session
        self._added_losses, self._on_losses = added_losses, on_losses

    @property
    def is_due(self) -> bool:
        """Whether steps are to be computed here, not by the model's own step."""
        return self.has_micro_batches or self.uses_xla

    @property
    def has_micro_batches(self) -> bool:
        """Whether the balancer was given their size."""
        return self._session.micro_batch_size is not None

    @property
    def uses_xla(self) -> bool:
        """Whether XLA compiles forward and backward pass.

        It can compile no exchange between ranks, and nobody can tell where a step of the model's
        own has some.
        """
        return (
            is_compiled_with_xla(self._model)
            and has_step_of_keras(self.plain)
            and not _synchronized(self._model)
        )

    def check(self) -> None:
        """Raises ValueError if the model's step cannot be computed in micro-batches."""
        if not self.has_micro_batches:
            return
        name = self._model.name
        if not has_step_of_keras(self.plain):
            raise ValueError(
                f"{name} has a train_step of its own, which cannot be cut into micro-batches from "
                f"outside. Let it call hvd.accumulate_gradients and leave it in a loop of your own "
                f"(docs/micro_batches.md), override compute_loss instead of train_step, or leave "
                f"out micro_batch_size."
            )
        if layers := _synchronized(self._model):
            raise ValueError(
                f"Layer {layers[0].name} of {name} normalizes by the global batch, whose samples "
                f"are never in memory together with micro_batch_size. Use GroupNormalization or "
                f"LayerNormalization, BatchNormalization(synchronized=False), which normalizes by "
                f"each micro-batch, or leave out micro_batch_size."
            )
        kinds = keras.layers.SpectralNormalization
        if layers := [one for one in all_layers(self._model) if isinstance(one, kinds)]:
            raise ValueError(
                f"Layer {layers[0].name} of {name} changes its weights in each forward pass, of "
                f"which ranks with other numbers of micro-batches have others in a step. Leave out "
                f"micro_batch_size."
            )

    def warn(self) -> None:
        """Names layers that look at a whole batch, on rank 0."""
        kinds = keras.layers.BatchNormalization
        layers = [one for one in all_layers(self._model) if isinstance(one, kinds)]
        trained = [one.name for one in layers if one.trainable]
        if self._session.micro_batch_size is not None and trained and hvd.rank() == 0:
            _LOGGER.warning(
                "BatchNormalization (%s) normalizes by each micro-batch, here of %d samples, and "
                "not by the local batch: training differs from one without micro-batches.",
                ", ".join(trained[:4]) + (", ..." if len(trained) > 4 else ""),
                self._session.micro_batch_size,
            )

    def __call__(self, data: Any) -> dict[str, Any]:
        """One step; returns the metrics."""
        model, weights = self._model, self._model.trainable_weights
        step = MicroBatchedStep(
            self._session,
            self._loss_of,
            weights,
            around=MicroBatchSeeds(model),
            jit_compile=self.uses_xla and not tf.executing_eagerly(),
        )
        _, gradients = step.run(data)
        model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        results: dict[str, Any] = model.get_metrics_result()
        return results

    def _loss_of(self, data: Any) -> tf.Tensor:
        """The scaled loss of a micro-batch, which the model's metrics have counted."""
        model, batch = self._model, current_global_batch()
        if batch is None:
            raise RuntimeError("a micro-batch is computed outside of a global batch.")
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with self._added_losses(model, batch):
            y_pred = predictions_of_step(model, x)
            loss = loss_of_step(model, x, y, y_pred, sample_weight)
        note_loss(model, loss, tf.shape(tf.nest.flatten(x)[0])[0])
        logs = model.compute_metrics(x, y, y_pred, sample_weight)
        unknown = sorted(set(logs) - set(model.get_metrics_result()))
        if unknown:
            raise ValueError(
                f"compute_metrics of {model.name} returns {', '.join(unknown)}, no metric of the "
                f"model, and nobody knows how such a number of one micro-batch and those of others "
                f"add up. Make it a keras.metrics.Metric among the model's metrics."
            )
        self._on_losses(batch)
        return model.optimizer.scale_loss(loss)


def micro_batches_of(model: keras.Model) -> MicroBatchedTraining | None:
    """What computes a model's steps in micro-batches; None for a model that no balancer trains."""
    return getattr(model.train_step, MICRO_BATCHES, None)


def _synchronized(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Layers that normalize by the samples of all ranks."""
    return [
        one
        for one in all_layers(model)
        if isinstance(one, keras.layers.BatchNormalization) and one.synchronized
    ]
