"""Bytes a second of the pack and unpack operations against a copy on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from benchmarks.op import Shape, resnet50
from hvd_dbs.ops import native

_WARM_UP, _REPEATS, _CALLS = 3, 30, 10
"""Calls are operations of one graph, as in training: outside of one, TensorFlow needs longer to
hand an operation hundreds of tensors than a GPU needs to pack them."""


def measure_bandwidth(device: str, *, small: bool) -> dict[str, Any]:
    """Measures on rank 0 while the others wait.

    Args:
        device: "GPU" or "CPU".
        small: Whether to try it only.

    Returns:
        For each layout of tensors: GB/s read and written of all three, and ratios to the copy.
    """
    library = native.loaded()
    if library is None:
        raise RuntimeError(native.reason_for_absence())
    if hvd.rank() != 0:
        return {}
    layouts: dict[str, list[Shape]] = {
        "ResNet-50, float32": list(resnet50()),
        "one tensor, float32": [(1 << 26,)],
        "500 tensors of 1000, float32": [(1000,)] * 500,
    }
    if small:
        layouts = {name: [(1000,)] * min(len(shapes), 20) for name, shapes in layouts.items()}
    repeats = 2 if small else _REPEATS
    with tf.device(f"{device}:0"):
        return {name: _of(library.ops, shapes, repeats) for name, shapes in layouts.items()}


def _of(ops: Any, shapes: Sequence[Shape], repeats: int) -> dict[str, float]:
    tensors = [tf.random.normal(shape) for shape in shapes]
    halves = [tf.cast(tensor, tf.float16) for tensor in tensors]
    with tf.device("CPU:0"):
        # Different ones: of operations that compute the same a graph keeps one.
        factors = [tf.constant(0.375 + call, tf.float64) for call in range(_CALLS)]
    kinds = {"N": len(halves), "T": tf.float16, "shapes": [half.shape for half in halves]}

    def pack(factor: tf.Tensor) -> tf.Tensor:
        return ops.hvd_dbs_pack(tensors=tensors, factor=factor, Wire=tf.float32)

    def unpack(bucket: tf.Tensor) -> tf.Tensor:
        # One of them: Python would need longer to take all from the graph.
        return ops.hvd_dbs_unpack(bucket=bucket, dynamic_shapes=[], **kinds)[0]

    buckets = [pack(factor) for factor in factors]
    # Of the bucket's own type nothing is unpacked: tensors stay where they are.
    ways: dict[str, Callable[[], Any]] = {
        "copy": tf.function(lambda: [tf.raw_ops.DeepCopy(x=bucket) for bucket in buckets]),
        "pack": tf.function(lambda: [pack(factor) for factor in factors]),
        "unpack to float16": tf.function(lambda: [unpack(bucket) for bucket in buckets]),
    }
    elements = sum(int(np.prod(shape)) for shape in shapes)
    read_and_written = {"copy": 8, "pack": 8, "unpack to float16": 6}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_WARM_UP + repeats):
        for name, way in ways.items():
            times[name].append(_seconds(way))
    speeds = {
        name: 1e-9 * elements * read_and_written[name] / float(np.median(row[_WARM_UP:]))
        for name, row in times.items()
    }
    return {
        **{f"{name}, GB/s": round(speed, 2) for name, speed in speeds.items()},
        "pack over copy": round(speeds["pack"] / speeds["copy"], 3),
        "unpack over copy": round(speeds["unpack to float16"] / speeds["copy"], 3),
    }


def _seconds(way: Callable[[], Any]) -> float:
    tf.test.experimental.sync_devices()
    start = time.perf_counter()
    way()
    tf.test.experimental.sync_devices()
    return (time.perf_counter() - start) / _CALLS
