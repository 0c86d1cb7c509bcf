"""The weighted mean of tensors over all ranks."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
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
        weight: What this rank's tensors count for: a number, not negative, or a scalar tensor.
            The value of a tensor is not looked at, which would cost time in each step. NaN or
            infinity in it make NaN of the results of all ranks, and a negative value numbers
            that mean nothing, without an error.
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
        TypeError: If a tensor is not of a floating-point type, there is no list of them, or a
            weight is no number.
        ValueError: If a weight is known to be negative, infinite or NaN, or is no scalar.

    Example:
        >>> mean, = weighted_allreduce([gradient], weight=num_samples)  # doctest: +SKIP
    """
    if tf.is_tensor(tensors) or isinstance(tensors, np.ndarray):
        raise TypeError(
            f"tensors is a single {type(tensors).__name__}; expected a list. "
            f"Use mean, = weighted_allreduce([tensor], weight)."
        )
    result = [_checked(tensor) for tensor in tensors]
    with tf.device("CPU"):  # Where the native library reads it, without waiting for a GPU.
        weight = _scalar("weight", weight)
        expected_total = _scalar("expected_total", expected_total)
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


def _scalar(name: str, given: Any) -> tf.Tensor:
    """A weight as a float32 tensor; what is wrong with a number is known here and now."""
    if isinstance(given, np.ndarray) and given.ndim == 0:
        given = given[()]
    if isinstance(given, numbers.Real) and not 0 <= float(given) < math.inf:
        raise ValueError(
            f"{name}={given} must be a finite number that is not negative: samples, or valid "
            f"elements, that tensors are a mean over; a rank without any has weight=0."
        )
    try:
        tensor = tf.convert_to_tensor(given)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"{name}={given!r} is a {type(given).__name__}; expected a number or a scalar tensor."
        ) from error
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        raise TypeError(f"{name} is of {tensor.dtype.name}; expected a number or a scalar tensor.")
    if tensor.shape.rank is None:
        tensor = tf.ensure_shape(tensor, [])
    if tensor.shape.rank != 0:
        raise ValueError(
            f"{name} is of shape {tuple(tensor.shape)}; expected a scalar, one for all tensors of "
            f"this rank. Sum it up, or call weighted_allreduce for each."
        )
    return tf.cast(tensor, tf.float32)


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
