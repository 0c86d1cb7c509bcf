"""The weighted mean of tensors over all ranks."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from hvd_dbs.ops import buckets, native, reference
from hvd_dbs.ops.autograph import do_not_convert

Tensors = Sequence[tf.Tensor | tf.IndexedSlices | None]


@do_not_convert
def weighted_allreduce(
    tensors: Tensors,
    weight: tf.Tensor | float,
    *,
    total_weight: tf.Tensor | float | None = None,
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
            The value of a tensor is not checked, which would cost time in each step: if it is
            NaN the results of all ranks are NaN, if it is infinite they are NaN or infinite, and
            a negative value counts as 0.
        total_weight: The sum of the weights of all ranks, where it is known: the same number on
            all ranks, 0 if all weights are 0. It is not checked: a wrong total scales the result.
            None on all ranks: the ranks add up their weights, with one small allreduce before the
            tensors are sent. In a graph it depends on the weight alone, so it can take place
            while gradients are still being computed.
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
    result = _checked(tensors)
    with tf.device("CPU"):  # Where the native library reads it, without waiting for a GPU.
        weight = _scalar("weight", weight)
        total = None if total_weight is None else _scalar("total_weight", total_weight)
    exchange = _Exchange(bucket_bytes, compression, process_set, name)
    for i, mean in exchange.means(result, weight, total).items():
        result[i] = mean
    return result


@dataclass(frozen=True)
class _Exchange:
    """How tensors travel: see the arguments of `weighted_allreduce`."""

    bucket_bytes: int
    compression: Any
    process_set: hvd.ProcessSet
    name: str

    def means(
        self, tensors: Tensors, weight: tf.Tensor, total: tf.Tensor | None
    ) -> dict[int, tf.Tensor | tf.IndexedSlices]:
        """The weighted means, by place, of all tensors that have elements to send."""
        sparse = {i: t for i, t in enumerate(tensors) if isinstance(t, tf.IndexedSlices)}
        dense = {
            i: tensor
            for i, tensor in enumerate(tensors)
            if isinstance(tensor, tf.Tensor) and tensor.shape.num_elements() != 0
        }
        if not sparse and not dense:
            return {}
        factor = self._factor(weight, total)
        means = self._dense_means(list(dense.values()), factor) if dense else []
        rows = {i: self._sparse_mean(t, factor, f"{self.name}.{i}") for i, t in sparse.items()}
        return {**dict(zip(dense, means, strict=True)), **rows}

    def _factor(self, weight: tf.Tensor, total: tf.Tensor | None) -> tf.Tensor:
        """What this rank's tensors are multiplied by: its share of the weights of all ranks."""
        with tf.device("CPU"):
            zero = tf.zeros_like(weight)
            weight = tf.where(weight < 0, zero, weight)  # NaN stays, and must reach the results.
            if total is None:
                name = f"{self.name}.weight"
                total = hvd.allreduce(weight, op=hvd.Sum, process_set=self.process_set, name=name)
            return tf.where(tf.equal(weight, 0), zero, weight / total)  # Also if the total is 0.

    def _dense_means(self, tensors: list[tf.Tensor], factor: tf.Tensor) -> list[tf.Tensor]:
        options = {
            "compression": self.compression,
            "process_set": self.process_set,
            "name": self.name,
        }
        library = self._library()
        if library is None:
            return reference.weighted_means(tensors, factor, **options)
        return buckets.weighted_means(
            library, tensors, factor, bucket_bytes=self.bucket_bytes, **options
        )

    def _library(self) -> native.NativeLibrary | None:
        """The native library, if all ranks have it and it knows the compression."""
        known = self.compression in (hvd.Compression.none, hvd.Compression.fp16)
        return native.agreed(self.process_set) if known else None

    def _sparse_mean(
        self, slices: tf.IndexedSlices, factor: tf.Tensor, name: str
    ) -> tf.IndexedSlices:
        scaled = reference.scaled(slices.values, factor)
        values = hvd.allgather(scaled, process_set=self.process_set, name=f"{name}.values")
        indices = hvd.allgather(slices.indices, process_set=self.process_set, name=f"{name}.rows")
        values = tf.cast(values, slices.values.dtype)
        return tf.IndexedSlices(values, indices, slices.dense_shape)


def _scalar(name: str, given: Any) -> tf.Tensor:
    """A weight as a float64 tensor; what is wrong with a number is known here and now."""
    if isinstance(given, np.ndarray) and given.ndim == 0:
        given = given[()]
    if isinstance(given, numbers.Real) and not 0 <= float(given) < math.inf:
        raise ValueError(
            f"{name}={given} must be a finite number that is not negative: samples, or valid "
            f"elements, that tensors are a mean over; a rank without any has weight=0."
        )
    if isinstance(given, numbers.Real):  # Which TensorFlow by itself would round to float32.
        return tf.constant(float(given), tf.float64)
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
    return tf.cast(tensor, tf.float64)


def _checked(tensors: Any) -> list[tf.Tensor | tf.IndexedSlices | None]:
    if tf.is_tensor(tensors) or isinstance(tensors, np.ndarray):
        raise TypeError(
            f"tensors is a single {type(tensors).__name__}; expected a list. "
            f"Use mean, = weighted_allreduce([tensor], weight)."
        )
    return [_checked_tensor(tensor) for tensor in tensors]


def _checked_tensor(tensor: Any) -> tf.Tensor | tf.IndexedSlices | None:
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
