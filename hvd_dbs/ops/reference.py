"""The weighted sum in TensorFlow's own operations: the native one's oracle and stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf


def weighted_means(
    tensors: Sequence[tf.Tensor],
    factor: tf.Tensor,
    *,
    compression: Any,
    process_set: hvd.ProcessSet,
    name: str,
) -> list[tf.Tensor]:
    """The weighted means of dense tensors.

    Args:
        tensors: Floating-point tensors, the same on all ranks.
        factor: This rank's share of the weights of all ranks, float64.
        compression: Horovod's compression for the way over the network.
        process_set: The ranks that take part.
        name: Horovod's name for the operation.
    """
    compressed = [compression.compress(scaled(tensor, factor)) for tensor in tensors]
    summed = _grouped_sums([tensor for tensor, _ in compressed], process_set, name)
    return [
        tf.cast(compression.decompress(of_all, context), tensor.dtype)
        for tensor, (_, context), of_all in zip(tensors, compressed, summed, strict=True)
    ]


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


def scaled(tensor: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """What a rank contributes: exact zeros for factor 0, whatever the tensor holds."""
    wide = tf.cast(tensor, tf.float32) if tensor.dtype.size < tf.float32.size else tensor
    factor = tf.cast(factor, wide.dtype)
    return tf.where(factor == 0, tf.zeros_like(wide), wide * factor)
