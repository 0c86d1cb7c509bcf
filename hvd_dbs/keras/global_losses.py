"""Keras's losses as means and sums over the global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from hvd_dbs.keras.internals import LOSS_REDUCTION, METRIC_REDUCTION, reduction_modules
from hvd_dbs.tensorflow.dependence import depends_on_samples
from hvd_dbs.tensorflow.global_batch import GlobalBatch, current_global_batch

ONE_NUMBER = "a loss function that returns one number for the whole batch"


@contextmanager
def global_losses() -> Iterator[None]:
    """Within it, Keras reduces losses over the global batch of the step.

    All of Keras's losses, and those derived from `keras.losses.Loss`, end in one function that
    knows values, mask, sample weights and reduction; the metrics `Mean` and `Sum` in another one.
    Both are replaced while a step is traced, or runs eagerly, and put back afterwards: Keras is
    what it was everywhere else. Within another one nothing more is replaced.

    Raises:
        RuntimeError: If this version of Keras has no such functions.
    """
    modules = reduction_modules()
    if modules is None:
        raise RuntimeError(
            f"Keras {keras.__version__} reduces losses in a way that hvd_dbs does not know, so "
            f"masked and weighted losses would not be those of the global batch. Install a version "
            f"of Keras that `hvd-dbs doctor` calls supported."
        )
    losses, metrics = modules
    plain_loss, plain_metric = getattr(losses, LOSS_REDUCTION), getattr(metrics, METRIC_REDUCTION)
    if plain_loss.__module__ == __name__:
        yield
        return
    setattr(losses, LOSS_REDUCTION, _global_reduction(plain_loss, losses.apply_mask))
    setattr(metrics, METRIC_REDUCTION, _weighted_scalars(plain_metric))
    try:
        yield
    finally:
        setattr(losses, LOSS_REDUCTION, plain_loss)
        setattr(metrics, METRIC_REDUCTION, plain_metric)


def _global_reduction(plain: Callable[..., Any], apply_mask: Callable[..., Any]) -> Any:
    """Keras's reduction of a loss, as this rank's part of the one over the global batch."""

    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = plain(values, sample_weight, mask, reduction, dtype)
        batch = current_global_batch()
        if batch is None or reduction in (None, "none"):
            return loss
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0:
            batch.losses.check(values, ONE_NUMBER)
            return loss
        if reduction == "sum":
            factor = batch.sum_factor
        elif reduction == "mean_with_sample_weight" and sample_weight is not None:
            weights = tf.cast(sample_weight, loss.dtype)
            merged = apply_mask(weights, mask, dtype=loss.dtype, reduction=reduction)
            factor = batch.loss_factor(tf.reduce_sum(merged))
        elif mask is not None:
            # Keras multiplies by `size(mask) / valid`, and divides by the number of values.
            valid = tf.reduce_sum(tf.cast(mask, tf.float64))
            repeats = tf.size(values, tf.int64) / tf.size(mask, tf.int64)
            factor = batch.loss_factor(valid * tf.cast(repeats, tf.float64))
        elif batch.counts_samples and values.shape[1:].is_fully_defined():
            # The denominators are the samples: no factor, and nothing to exchange.
            batch.check_rows(tf.shape(values, tf.int64)[0])
            return batch.losses.add(loss)
        else:
            factor = batch.loss_factor(tf.size(values, tf.int64))
        return batch.losses.add(loss * tf.cast(factor, loss.dtype))

    return reduce_weighted_values


def _weighted_scalars(plain: Callable[..., Any]) -> Any:
    """Keras's reduction for `Mean` and `Sum`, where each rank's number counts by its samples.

    Then what the ranks have counted adds up to what one process counts: one number a step. A number
    that `Sum` is given is a sum over the rank's samples and counts as it is, unless it is a loss of
    the global batch.
    """

    def reduce_to_samplewise_values(
        values: Any, sample_weight: Any, reduce_fn: Any, dtype: Any
    ) -> Any:
        batch = current_global_batch()
        if batch is not None and batch.counts_samples and sample_weight is None:
            values = tf.convert_to_tensor(values)
            is_sum = reduce_fn is keras.ops.sum and not _is_of_losses(values, batch)
            if values.shape.rank == 0 and not is_sum:
                sample_weight = tf.math.divide_no_nan(batch.weight, batch.total)
        return plain(values, sample_weight, reduce_fn, dtype)

    return reduce_to_samplewise_values


def _is_of_losses(values: tf.Tensor, batch: GlobalBatch) -> bool:
    """Whether a number depends on samples through losses of the global batch alone."""
    known = batch.losses.known
    return depends_on_samples(values, known, or_on_their_number=True) is False
