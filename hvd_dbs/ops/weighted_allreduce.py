"""The weighted mean of tensors over all ranks, in TensorFlow operations around Horovod's sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

Tensors = Sequence[tf.Tensor | tf.IndexedSlices | None]


def weighted_allreduce(
    tensors: Tensors,
    weight: tf.Tensor | float,
    *,
    compression: Any = hvd.Compression.none,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    name: str = "hvd_dbs.weighted_allreduce",
) -> list[tf.Tensor | tf.IndexedSlices | None]:
    """Returns sum_i w_i x_i / sum_i w_i of each tensor, on all ranks.

    A rank with weight 0 contributes exact zeros, whatever its tensors hold. Half-precision
    tensors are summed in float32 and rounded once. If all weights are 0 the result is 0.

    Args:
        tensors: Tensors of any shapes and floating-point types, the same on all ranks;
            IndexedSlices, whose rows may differ, and None stay what they are.
        weight: What this rank's tensors count for, a scalar, not negative; best of the order of 1
            (a share of the batch), so that products keep their range.
        compression: Horovod's compression for the way over the network.
        process_set: The ranks that take part.
        name: Horovod's name for the operation, the same on all ranks.

    Returns:
        The weighted means, in the order, shapes and types given.

    Example:
        >>> mean, = weighted_allreduce([gradient], weight=num_samples)  # doctest: +SKIP
    """
    weight = tf.cast(weight, tf.float32)
    dense = [(i, t) for i, t in enumerate(tensors) if isinstance(t, tf.Tensor)]
    sparse = [(i, t) for i, t in enumerate(tensors) if isinstance(t, tf.IndexedSlices)]
    packed = [_scaled(tensor, weight) for _, tensor in dense]
    compressed = [compression.compress(tensor) for tensor in packed]
    summed = hvd.grouped_allreduce(
        [weight, *(tensor for tensor, _ in compressed)],
        op=hvd.Sum,
        process_set=process_set,
        name=name,
    )
    total = summed[0]
    result: list[tf.Tensor | tf.IndexedSlices | None] = [None] * len(tensors)
    for (i, tensor), (_, context), total_of in zip(dense, compressed, summed[1:], strict=True):
        result[i] = _mean(compression.decompress(total_of, context), total, tensor.dtype)
    for i, slices in sparse:
        values = hvd.allgather(
            _scaled(slices.values, weight), process_set=process_set, name=f"{name}.values.{i}"
        )
        indices = hvd.allgather(slices.indices, process_set=process_set, name=f"{name}.rows.{i}")
        result[i] = tf.IndexedSlices(
            _mean(values, total, slices.values.dtype), indices, slices.dense_shape
        )
    return result


def _scaled(tensor: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    if not tensor.dtype.is_floating:
        raise TypeError(
            f"weighted_allreduce got a tensor of {tensor.dtype.name}; expected a floating-point "
            f"type, since a weighted mean of whole numbers is not one."
        )
    wide = _wide(tensor)
    return tf.where(weight > 0, wide * tf.cast(weight, wide.dtype), tf.zeros_like(wide))


def _wide(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < tf.float32.size else tensor


def _mean(summed: tf.Tensor, total: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.math.divide_no_nan(summed, tf.cast(total, summed.dtype)), dtype)
