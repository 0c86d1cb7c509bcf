"""The weighted sum in TensorFlow's own operations: the native one's oracle and stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf


def weighted_means(
    tensors: Sequence[tf.Tensor],
    weight: tf.Tensor,
    expected_total: tf.Tensor,
    *,
    compression: Any,
    process_set: hvd.ProcessSet,
    name: str,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The weighted means of dense tensors, and the summed weight in float64.

    Args:
        tensors: Floating-point tensors, the same on all ranks.
        weight: What this rank's tensors count for, float32.
        expected_total: What the weights are expected to add up to, float32; keeps products in
            range, the result does not depend on it.
        compression: Horovod's compression for the way over the network.
        process_set: The ranks that take part.
        name: Horovod's name for the operation.
    """
    packed = [scaled(tensor, weight, expected_total) for tensor in tensors]
    compressed = [compression.compress(tensor) for tensor in packed]
    travelling = [tf.cast(weight, tf.float64), *(tensor for tensor, _ in compressed)]
    total, *summed = _grouped_sums(travelling, process_set, name)
    means = [
        mean(compression.decompress(of_all, context), total, expected_total, tensor.dtype)
        for tensor, (_, context), of_all in zip(tensors, compressed, summed, strict=True)
    ]
    return means, total


def _grouped_sums(
    tensors: Sequence[tf.Tensor], process_set: hvd.ProcessSet, name: str
) -> list[tf.Tensor]:
    """Sums over all ranks; Horovod's groups are of one type."""
    sums: list[tf.Tensor | None] = [None] * len(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        members = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        group = hvd.grouped_allreduce(
            [tensors[i] for i in members],
            op=hvd.Sum,
            process_set=process_set,
            name=f"{name}.{dtype.name}",
        )
        for i, summed in zip(members, group, strict=True):
            sums[i] = summed
    return sums


def scaled(tensor: tf.Tensor, weight: tf.Tensor, expected_total: tf.Tensor) -> tf.Tensor:
    """What a rank contributes: exact zeros for weight 0, whatever the tensor holds."""
    wide = tf.cast(tensor, tf.float32) if tensor.dtype.size < tf.float32.size else tensor
    factor = tf.cast(weight, tf.float64) / tf.cast(expected_total, tf.float64)
    return tf.where(weight > 0, wide * tf.cast(factor, wide.dtype), tf.zeros_like(wide))


def mean(
    summed: tf.Tensor, total: tf.Tensor, expected_total: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    """The mean of what all ranks contributed; 0 if nobody had a weight (`total`, float64)."""
    factor = tf.math.divide_no_nan(tf.cast(expected_total, tf.float64), total)
    return tf.cast(summed * tf.cast(factor, summed.dtype), dtype)
