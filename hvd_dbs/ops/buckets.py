"""The weighted sum over flat buckets, packed and unpacked by the native library."""

from __future__ import annotations

import os
import zlib
from collections.abc import Hashable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_dbs.ops.native import NativeLibrary
from hvd_dbs.ops.step_clock import noting_clock

_THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
_HOROVOD_FUSION_BYTES = 128 * 2**20

DEFAULT_BUCKET_BYTES = 24 * 2**20
"""Measured by benchmarks/op.py. Large enough for the network's bandwidth; small enough to start
before the last gradient, to be packed while another is summed, and for the C library to give the
same memory again in each step (from 32 MiB on it asks for new pages, at the price of a copy)."""


def weighted_means(
    library: NativeLibrary,
    tensors: Sequence[tf.Tensor],
    factor: tf.Tensor,
    *,
    bucket_bytes: int,
    compression: Any,
    process_set: hvd.ProcessSet,
    name: str,
) -> list[tf.Tensor]:
    """The weighted means of dense tensors.

    Args:
        library: The native library.
        tensors: Floating-point tensors, the same on all ranks.
        factor: This rank's share of the weights of all ranks, float64, on the CPU.
        bucket_bytes: Where a bucket is closed; a tensor is never split.
        compression: Horovod's `Compression.none` or `Compression.fp16`.
        process_set: The ranks that take part.
        name: Beginning of Horovod's names for the operations.
    """
    wires = [_wire(tensor.dtype, compression) for tensor in tensors]
    order = _order_of_appearance(tensors)
    plan = plan_buckets(
        [_size_in_bucket(tensors[i].shape, wires[i]) for i in order],
        [(tensors[i].dtype.name, wires[i].name) for i in order],
        bucket_bytes,
    )
    means: list[tf.Tensor | None] = [None] * len(tensors)
    sums: list[tf.Tensor] = []
    for number, positions in enumerate(plan):
        noted = {"clock": noting_clock(), "number": number}
        members = [order[position] for position in positions]
        parts = [tensors[i] for i in members]
        wire = wires[members[0]]
        bucket = library.ops.hvd_dbs_pack(tensors=parts, factor=factor, Wire=wire, **noted)
        with tf.control_dependencies(_fusible_with(bucket, sums)):
            summed = hvd.allreduce(
                bucket,
                op=hvd.Sum,
                process_set=process_set,
                # Buckets that differ between ranks then wait for each other, and Horovod says so,
                # where sums of unlike tensors would go unnoticed.
                name=f"{name}.{number}.{_digest(members, parts)}",
            )
        sums.append(summed)
        shapes = [part.shape for part in parts]
        all_known = all(shape.is_fully_defined() for shape in shapes)
        unpacked = library.ops.hvd_dbs_unpack(
            bucket=summed,
            dynamic_shapes=[] if all_known else [tf.shape(part, tf.int64) for part in parts],
            N=len(parts),
            T=parts[0].dtype,
            shapes=shapes,
            **noted,
        )
        for i, value in zip(members, unpacked, strict=True):
            means[i] = value
    return means


def _size_in_bucket(shape: tf.TensorShape, wire: tf.DType) -> int:
    """Bytes; 0 for what is not known, and for a scalar, which is not worth a bucket."""
    return (shape.num_elements() or 0) * wire.size if shape.rank else 0


def _fusible_with(bucket: tf.Tensor, earlier: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The buckets after which this one is sent: those with which Horovod would fuse it.

    Buckets are a fusion buffer already, and need not be copied into another.
    """
    threshold = int(os.environ.get(_THRESHOLD, _HOROVOD_FUSION_BYTES))
    return [
        other
        for other in earlier
        if other.dtype == bucket.dtype
        and (_num_bytes(other) or 0) + (_num_bytes(bucket) or 0) <= threshold
    ]


def _num_bytes(tensor: tf.Tensor) -> int | None:
    num_elements = tensor.shape.num_elements()
    return None if num_elements is None else num_elements * tensor.dtype.size


def plan_buckets(
    sizes: Sequence[int], kinds: Sequence[Hashable], bucket_bytes: int
) -> list[list[int]]:
    """Puts tensors into buckets in the order in which they appear.

    Args:
        sizes: Bytes of each tensor; what has 0 goes along with what is there.
        kinds: A bucket holds tensors of one kind.
        bucket_bytes: A bucket is closed before it exceeds this.

    Returns:
        The tensors of each bucket, in the order in which the buckets are complete.

    Example:
        >>> plan_buckets([5, 5, 5, 20, 0, 1], ["a"] * 6, bucket_bytes=10)
        [[0, 1], [2], [3, 4], [5]]
    """
    closed: list[list[int]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    for i, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        bucket = open_buckets.setdefault(kind, [])
        if bucket and size and sum(sizes[j] for j in bucket) + size > bucket_bytes:
            closed.append(bucket)
            bucket = open_buckets[kind] = []
        bucket.append(i)
    return [*closed, *sorted(open_buckets.values(), key=lambda bucket: bucket[-1])]


def _wire(dtype: tf.DType, compression: Any) -> tf.DType:
    """The type in which tensors travel: wide enough that a sum is rounded once."""
    if compression is hvd.Compression.fp16:
        return tf.float16
    return tf.float64 if dtype == tf.float64 else tf.float32


def _order_of_appearance(tensors: Sequence[tf.Tensor]) -> list[int]:
    """Positions in the order in which a step computes the tensors: backwards, for gradients."""
    if tf.executing_eagerly():
        return list(range(len(tensors)))
    graph = tf.compat.v1.get_default_graph()
    made = {operation.name: i for i, operation in enumerate(graph.get_operations())}
    appeared = [made.get(t.op.name, -1) if t.graph is graph else -1 for t in tensors]
    return sorted(range(len(tensors)), key=lambda i: (appeared[i], i))


def _digest(members: Sequence[int], parts: Sequence[tf.Tensor]) -> str:
    layout = [(i, part.dtype.name, str(part.shape)) for i, part in zip(members, parts, strict=True)]
    return f"{zlib.crc32(repr(layout).encode()):08x}"
