"""Batch normalization by the samples of all ranks."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_dbs.comm.collective import is_elastic
from hvd_dbs.keras.internals import all_layers
from hvd_dbs.keras.mixed_in import mix_in
from hvd_dbs.tensorflow.global_batch import GlobalBatch, current_global_batch


class Synchronized:
    """Mixed in before a BatchNormalization class: moments are those of the samples of all ranks."""

    _reduction_axes: list[int]
    weights: list[Any]

    def _moments(self, inputs: Any, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of each channel, shapes `[channels]`; collective if others may come."""
        if not (hvd.is_initialized() and (hvd.size() > 1 or is_elastic())):
            if mask is not None:
                return super()._moments(inputs, mask)  # type: ignore[misc]
            return keras.ops.moments(inputs, axes=self._reduction_axes)
        inputs = tf.convert_to_tensor(inputs)
        valid = None if mask is None else _broadcast_mask(mask, inputs)
        batch = current_global_batch() or _batch_of_equal_ranks()
        # A channel whose positions are all masked has the mean and variance 0, as in Keras.
        smallest = 0.0 if mask is None else keras.backend.epsilon()
        sums = batch.sum(_sums(inputs, valid, self._reduction_axes))
        mean, variance = _moments_of_sums(sums, smallest)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


@keras.saving.register_keras_serializable("hvd_dbs")
class SyncBatchNormalization(Synchronized, keras.layers.BatchNormalization):
    """Batch normalization by the mean and variance over the samples of all ranks.

    In a training step of `fit` with a balancer, and within `hvd.global_batch`, what is learned is
    what `keras.layers.BatchNormalization` learns in one process that gets the whole global batch,
    whatever the plan is: weights, gradients and moving statistics. Masked positions do not count,
    nor do padding samples. Elsewhere, on several ranks and with `training=True`, every rank's
    samples count as they are, as with Horovod's gradient averages: all ranks must make the call.

    Each call in training costs one allreduce of `3 * channels` numbers, and one for its gradients.
    In one process it is Keras's layer, and weights are in the order of that one's, for
    `set_weights`. Files of weights go by class names: `BatchNormalization(synchronized=True)`,
    which computes the same in `fit`, loads those of a model with Keras's layer.

    Args:
        axis: The axis of the channels.
        momentum: Of the moving statistics.
        epsilon: Added to the variance.
        **options: Other arguments of `keras.layers.BatchNormalization`.

    Raises:
        ValueError: If it is given `synchronized=False`.

    References:
        Ioffe and Szegedy, "Batch Normalization", 2015, https://arxiv.org/abs/1502.03167.

    Example:
        >>> layer = SyncBatchNormalization(momentum=0.9)
        >>> tuple(layer(keras.ops.ones((4, 3)), training=True).shape)
        (4, 3)
    """

    def __init__(
        self, axis: int = -1, momentum: float = 0.99, epsilon: float = 1e-3, **options: Any
    ) -> None:
        if not options.pop("synchronized", True):
            raise ValueError(
                "SyncBatchNormalization was given synchronized=False. Use "
                "keras.layers.BatchNormalization where each rank is to use its own batch."
            )
        super().__init__(
            axis=axis, momentum=momentum, epsilon=epsilon, synchronized=True, **options
        )


def synchronize_batch_normalization(model: keras.Model) -> None:
    """Makes `BatchNormalization(synchronized=True)` mean the ranks of the job, in place.

    Keras itself means the replicas of a `tf.distribute` strategy, of which there is one. To be
    called before a training step is traced. Saved models are the same as before.
    """
    for layer in all_layers(model):
        is_meant = isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized
        if is_meant and not isinstance(layer, Synchronized):
            mix_in(Synchronized, layer)


def _broadcast_mask(mask: Any, inputs: tf.Tensor) -> tf.Tensor:
    """The mask of Keras, which has one dimension less, for each input value."""
    mask = tf.cast(tf.convert_to_tensor(mask), tf.bool)
    return tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs))


def _sums(inputs: tf.Tensor, valid: tf.Tensor | None, axes: list[int]) -> tf.Tensor:
    """Counts, sums and sums of squares of each channel, shape `[3, channels]`, float64.

    Squares are summed about this rank's own mean, in the precision of the inputs. What ranks differ
    by is then found in float64, so that a mean far from 0 costs no digits of the variance; that is
    for few numbers only.
    """
    totals = tf.reduce_sum(_only(valid, inputs), axes, keepdims=True)
    if valid is None:
        channels = tf.size(totals, tf.int64)
        counts = tf.fill(tf.shape(totals), tf.size(inputs, tf.int64) // channels)
    else:
        counts = tf.math.count_nonzero(valid, axes, keepdims=True)
    means = tf.math.divide_no_nan(totals, tf.cast(counts, inputs.dtype))
    # The squares have no slope in the mean that they are taken about.
    deviations = _only(valid, inputs - tf.stop_gradient(means))
    squares = tf.reduce_sum(tf.square(deviations), axes)
    count, mean, square = (
        tf.cast(tf.reshape(one, [-1]), tf.float64) for one in (counts, means, squares)
    )
    return tf.stack([count, count * mean, count * tf.square(mean) + square])


def _only(valid: tf.Tensor | None, values: tf.Tensor) -> tf.Tensor:
    return values if valid is None else tf.where(valid, values, tf.zeros_like(values))


def _moments_of_sums(sums: tf.Tensor, smallest: float) -> tuple[tf.Tensor, tf.Tensor]:
    counts, totals, squares = tf.unstack(sums)
    divisors = counts + smallest
    means = tf.math.divide_no_nan(totals, divisors)
    deviations = squares - 2 * means * totals + counts * tf.square(means)
    return means, tf.maximum(tf.math.divide_no_nan(deviations, divisors), 0)


_OF_GRAPHS: WeakKeyDictionary[tf.Graph, GlobalBatch] = WeakKeyDictionary()
"""One for all layers of a step, since it numbers their exchanges."""


def _batch_of_equal_ranks() -> GlobalBatch:
    """A global batch in which every rank counts the same, outside of one that says more."""
    with tf.init_scope():  # Its numbers serve all functions of the step.
        batch = GlobalBatch(1.0, float(hvd.size()))
    if tf.executing_eagerly():
        return batch
    graph = tf.compat.v1.get_default_graph()
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):
        graph = graph.outer_graph
    return _OF_GRAPHS.setdefault(graph, batch)
