"""Training steps of a model that see the global batch."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_dbs.balancer import Balancer, require_balancer, session_of
from hvd_dbs.keras.batch_statistics import of_padding_samples
from hvd_dbs.keras.global_losses import ONE_NUMBER, global_losses
from hvd_dbs.keras.internals import (
    ADDED_LOSSES,
    all_layers,
    compiled_losses,
    is_of_keras,
    losses_of_call,
    method_by,
)
from hvd_dbs.keras.micro_batched_training import MICRO_BATCHES, MicroBatchedTraining
from hvd_dbs.keras.model_optimizers import balancer_of
from hvd_dbs.ops.step_samples import StepSamples
from hvd_dbs.tensorflow.global_batch import GlobalBatch, current_global_batch, within
from hvd_dbs.tensorflow.num_ranks import num_ranks

_LOGGER = logging.getLogger(__name__)

_PLAIN, _BALANCER = "_hvd_dbs_plain_step", "_hvd_dbs_balancer"
"""Attributes of a step that sees the global batch: the model's own step, and whose samples."""

_OWN_LOSS = "a loss that train_step computes itself"
_OWN_SUM = "a loss that compute_loss computes itself"
_ADDED_LOSS = "a loss of add_loss"
_COMPARED_SAMPLES = "the circle loss, which compares the samples of a local batch with each other"


@contextmanager
def global_batch(balancer: Balancer | None = None) -> Iterator[GlobalBatch]:
    """Within it, losses and batch statistics are those of the global batch, over all ranks.

    `fit` does this by itself. A loop of one's own puts the forward pass and the losses of each
    training step into it. Keras's losses then divide by the valid elements, or the sample weights,
    of all ranks; `global_mean` and `global_sum` do so for losses written by hand; synchronized
    batch normalization takes its moments over all ranks. One small exchange is made for each loss
    whose denominator is not the number of samples, none for others. Within another one, as in a
    `train_step` that `fit` calls, it is that one.

    Args:
        balancer: The optimizer's balancer. None: gradients of all ranks count the same, as with
            Horovod's own tape or an optimizer without a balancer.

    Yields:
        The global batch.

    Raises:
        TypeError: If `balancer` is not a Balancer.
        RuntimeError: If hvd_dbs does not know how this version of Keras reduces losses.

    Example:
        >>> with tf.GradientTape() as tape, hvd.global_batch(balancer):  # doctest: +SKIP
        ...     loss = loss_of(labels, model(inputs, training=True))
        >>> gradients = tape.gradient(loss, model.trainable_variables)  # doctest: +SKIP
    """
    if (of_caller := current_global_batch()) is not None:
        yield of_caller
        return
    if balancer is None:
        batch = GlobalBatch(1.0, num_ranks())
    else:
        samples = session_of(require_balancer(balancer, "global_batch")).samples
        of_step = samples.batch()
        batch = GlobalBatch(of_step.num_samples, of_step.total, note_misfit=samples.note_misfit)
    with global_losses(), within(batch):
        yield batch


def train_on_global_batches(model: keras.Model, balancer: Balancer) -> MicroBatchedTraining:
    """Lets the training steps of a model see the global batch, from its next `fit` on.

    The method `train_step` of this model object is wrapped, whatever its class does in it; saving,
    evaluation and prediction are not touched. Where the balancer has micro-batches, Keras's own
    step is computed in these. To be called before `fit` makes its step.

    Args:
        model: A compiled model.
        balancer: Knows the samples of each step.

    Returns:
        What computes the steps where there are micro-batches.
    """
    if getattr(model.train_step, _BALANCER, None) is balancer:
        made: MicroBatchedTraining = getattr(model.train_step, MICRO_BATCHES)
        return made
    plain = getattr(model.train_step, _PLAIN, model.train_step)
    is_warned = False

    def warn_once(batch: GlobalBatch) -> None:
        nonlocal is_warned
        if not is_warned:
            is_warned = True
            _warn(model, batch)

    def on_whole_batch(data: Any) -> Any:
        with global_batch(balancer) as batch, _added_losses(model, batch):
            logs = plain(data)
        warn_once(batch)
        return logs

    session = session_of(balancer)
    in_micro_batches = MicroBatchedTraining(model, plain, session, _added_losses, warn_once)

    def train_step(data: Any) -> Any:
        if balancer_of(model) is not balancer:
            return plain(data)  # It has been compiled with another optimizer since.
        before = _Untouched(model, session.samples)
        logs = in_micro_batches(data) if in_micro_batches.is_due else on_whole_batch(data)
        before.restore_without_samples()
        return logs

    setattr(train_step, _PLAIN, plain)
    setattr(train_step, _BALANCER, balancer)
    setattr(train_step, MICRO_BATCHES, in_micro_batches)
    model.train_step = train_step
    model.train_function = None  # `fit` makes it of the step.
    return in_micro_batches


@contextmanager
def _added_losses(model: keras.Model, batch: GlobalBatch) -> Iterator[None]:
    """Within it, losses of `add_loss`, and of the model's own `compute_loss`, are looked at."""
    are_sums = _activity_losses_are_sums()

    def wrap(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def aggregate(loss: tf.Tensor) -> Any:
            if any(loss is one for one in _activity_losses(model)):
                if are_sums:
                    loss = loss * tf.cast(batch.sum_factor, loss.dtype)
            elif not (tf.executing_eagerly() and _is_of_weights(model, loss)):
                batch.losses.check(loss, _ADDED_LOSS)
            return plain(loss)

        return aggregate

    def wrap_own(plain: Callable[..., Any]) -> Callable[..., Any]:
        def compute_loss(*arguments: Any, **options: Any) -> Any:
            loss = plain(*arguments, **options)
            if loss is not None and not batch.losses.opaque:
                batch.losses.check(loss, _OWN_SUM)
            return loss

        is_of_keras = getattr(plain, "__func__", None) is keras.Model.compute_loss
        return plain if is_of_keras else compute_loss

    with method_by(model, ADDED_LOSSES, wrap), method_by(model, "compute_loss", wrap_own):
        yield


def _activity_losses(model: keras.Model) -> list[tf.Tensor]:
    """Those that Keras's regularizers make of the outputs of Keras's layers."""
    return [
        loss
        for layer in all_layers(model)
        if is_of_keras(layer.activity_regularizer, "regularizers") and is_of_keras(layer, "layers")
        for loss in losses_of_call(layer)
    ]


def _is_of_weights(model: keras.Model, loss: tf.Tensor) -> bool:
    """Whether no call of a layer has added it: a regularizer has made it of a layer's weights."""
    return not any(loss is one for layer in all_layers(model) for one in losses_of_call(layer))


@functools.cache
def _activity_losses_are_sums() -> bool:
    """Whether this version of Keras adds them up over a batch; newer ones take means."""
    with tf.init_scope():
        layer = keras.layers.Identity(activity_regularizer=keras.ops.sum)
        layer(keras.ops.ones((2, 1)))
        return float(layer.losses[0]) > 1


def _warn(model: keras.Model, batch: GlobalBatch) -> None:
    """Names the losses that are taken as means over samples without being known to be."""
    opaque = list(dict.fromkeys(batch.losses.opaque))
    if not batch.losses.known and not opaque:
        opaque = [_OWN_LOSS]
    if any(_compares_samples(one.loss) for one in compiled_losses(model)):
        opaque.append(_COMPARED_SAMPLES)
    if opaque and hvd.rank() == 0:
        _LOGGER.warning(
            "fit trains %s on %s. It is weighted by samples, which is right for a mean over "
            "samples; for anything else training differs from one process. Make such a loss with "
            "hvd.global_mean(values, weights) or hvd.global_sum(values)%s. "
            "`hvd-dbs verify --model` shows whether it matters.",
            model.name,
            " and on ".join(opaque),
            ", or return one value for each sample" if ONE_NUMBER in opaque else "",
        )


def _compares_samples(loss: Any) -> bool:
    """Whether a loss of Keras has a value for each sample that depends on the others."""
    circle = keras.losses.circle
    return isinstance(loss, keras.losses.Circle) or getattr(loss, "fn", None) is circle


class _Untouched:
    """What a step in which this rank has padding samples only must not change.

    Where each step is a call of its own, the callback of `fit` takes it back after the step; where
    several steps run in one call, that happens here, in the graph.

    Args:
        model: The model whose step begins.
        samples: Knows the samples of the step.
    """

    def __init__(self, model: keras.Model, samples: StepSamples) -> None:
        self._values: list[tuple[tf.Variable, tf.Tensor]] = []
        if model.steps_per_execution > 1:
            self._num_samples = samples.batch().num_samples
            self._values = [(v, tf.identity(v)) for v in of_padding_samples(model)]

    def restore_without_samples(self) -> None:
        """Takes back what padding samples have changed; in the graph."""
        if not self._values:
            return

        def restore() -> tf.Tensor:
            for variable, value in self._values:
                variable.assign(value)
            return tf.constant(True)

        tf.cond(self._num_samples > 0, lambda: tf.constant(False), restore)
