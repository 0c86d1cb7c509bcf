"""The weighted mean of tensors over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_dbs.ops import buckets, native, twin

Tensors = Sequence[tf.Tensor | tf.IndexedSlices | None]


def weighted_allreduce(
    tensors: Tensors,
    weight: tf.Tensor | float,
    *,
    expected_total: tf.Tensor | float = 1.0,
    bucket_bytes: int = buckets.DEFAULT_BUCKET_BYTES,
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
        weight: What this rank's tensors count for, a scalar, not negative.
        expected_total: What the weights of all ranks are expected to add up to, positive, the
            same on all ranks. The result does not depend on it, but it is computed with
            `weight / expected_total`: near the truth no product leaves the range of its type,
            and where it is exact a pass over the tensors is saved.
        bucket_bytes: Tensors travel in flat buckets of about this size, in the order in which
            they appear; the same on all ranks.
        compression: Horovod's compression for the way over the network.
        process_set: The ranks that take part.
        name: Horovod's name for the operation, the same on all ranks.

    Returns:
        The weighted means, in the order, shapes and types given.

    Raises:
        TypeError: If a tensor is not of a floating-point type.

    Example:
        >>> mean, = weighted_allreduce([gradient], weight=num_samples)  # doctest: +SKIP
    """
    result = [_checked(tensor) for tensor in tensors]
    with tf.device("CPU"):  # Where the native library reads it, without waiting for a GPU.
        weight = tf.cast(weight, tf.float32)
        expected_total = tf.cast(expected_total, tf.float32)
    sparse = {i: t for i, t in enumerate(result) if isinstance(t, tf.IndexedSlices)}
    # What has no elements has nothing to send.
    dense = {
        i: tensor
        for i, tensor in enumerate(result)
        if isinstance(tensor, tf.Tensor) and tensor.shape.num_elements() != 0
    }
    total: tf.Tensor | None = None
    if dense:
        options = {"compression": compression, "process_set": process_set, "name": name}
        library = _library(compression, process_set)
        chosen = list(dense.values())
        if library is None:
            means, total = twin.weighted_means(chosen, weight, expected_total, **options)
        else:
            means, total = buckets.weighted_means(
                library, chosen, weight, expected_total, bucket_bytes=bucket_bytes, **options
            )
        for i, value in zip(dense, means, strict=True):
            result[i] = value
    if sparse and total is None:
        total = buckets.summed_weight(weight, process_set, name)
    for i, slices in sparse.items():
        result[i] = _sparse_mean(slices, weight, expected_total, total, process_set, f"{name}.{i}")
    return result


def _library(compression: Any, process_set: hvd.ProcessSet) -> native.NativeLibrary | None:
    """The native library, if all ranks have it and it knows the compression."""
    known = compression in (hvd.Compression.none, hvd.Compression.fp16)
    return native.agreed(process_set) if known else None


def _sparse_mean(
    slices: tf.IndexedSlices,
    weight: tf.Tensor,
    expected_total: tf.Tensor,
    total: tf.Tensor,
    process_set: hvd.ProcessSet,
    name: str,
) -> tf.IndexedSlices:
    values = hvd.allgather(
        twin.scaled(slices.values, weight, expected_total),
        process_set=process_set,
        name=f"{name}.values",
    )
    indices = hvd.allgather(slices.indices, process_set=process_set, name=f"{name}.rows")
    return tf.IndexedSlices(
        twin.mean(values, total, expected_total, slices.values.dtype), indices, slices.dense_shape
    )


def _checked(tensor: Any) -> tf.Tensor | tf.IndexedSlices | None:
    if tensor is None:
        return None
    if not isinstance(tensor, tf.IndexedSlices):
        tensor = tf.convert_to_tensor(tensor)
    if not tensor.dtype.is_floating:
        raise TypeError(
            f"weighted_allreduce got a tensor of {tensor.dtype.name}; expected a floating-point "
            f"type, since a weighted mean of whole numbers is not one."
        )
    return tensor
