"""The native operations on a device, and on no other, against NumPy in float64."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_dbs.ops import native
from hvd_dbs.ops.step_clock import StepClock

_PAIRS = (
    (tf.float32, tf.float32),
    (tf.float64, tf.float64),
    (tf.float16, tf.float16),
    (tf.float16, tf.float32),
    (tf.bfloat16, tf.float32),
    (tf.bfloat16, tf.float16),
    (tf.float32, tf.float16),
    (tf.float64, tf.float16),
)
"""Types of tensors and of buckets: all that there are kernels for."""
_SHAPES: tuple[tuple[int, ...], ...] = ((3, 5), (), (0, 2), (1000,), (7, 11, 13), (65,))
_MANY = 700
"""Tensors in a bucket: more than one launch of the kernel carries."""


def check_operations(device: str, *, small: bool) -> dict[str, Any]:
    """Runs all checks.

    Args:
        device: "GPU" or "CPU".
        small: Unused: they are.

    Raises:
        RuntimeError: If there is no native library, or none with kernels for the device.
        AssertionError: If a result is wrong.
    """
    library = native.loaded()
    if library is None:
        raise RuntimeError(native.reason_for_absence())
    if device == "GPU" and not library.has_cuda:
        raise RuntimeError(
            "The native library has no kernels for GPUs: HVD_DBS_CUDA=1 builds them."
        )
    with _on(device):
        for dtype, wire in _PAIRS:
            for factor in (0.25, 1.0, 0.0, 1e-3, math.nan):
                _check_round_trip(library.ops, device, dtype, wire, factor)
        _check_many(library.ops)
        _check_factor_zero(library.ops)
        _check_shapes_known_late(library.ops)
        _check_clock(device)
        _check_signal(device)
    return {"pairs_of_types": len(_PAIRS)}


@contextlib.contextmanager
def _on(device: str) -> Iterator[None]:
    """Within it all runs on a device; where that is not possible there is an error."""
    soft = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(False)
    try:
        with tf.device(f"{device}:0"):
            yield
    finally:
        tf.config.set_soft_device_placement(soft)


def _pack(ops: Any, tensors: list[tf.Tensor], wire: tf.DType, factor: float) -> tf.Tensor:
    with tf.device("CPU:0"):
        share = tf.constant(factor, tf.float64)
    return ops.hvd_dbs_pack(tensors=tensors, factor=share, Wire=wire)


def _unpack(
    ops: Any, bucket: tf.Tensor, tensors: list[tf.Tensor], **shapes: Any
) -> list[tf.Tensor]:
    found: list[tf.Tensor] = ops.hvd_dbs_unpack(
        bucket=bucket,
        N=len(tensors),
        T=tensors[0].dtype,
        **{"dynamic_shapes": [], "shapes": [tensor.shape for tensor in tensors], **shapes},
    )
    return found


def _random(shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    values = np.random.default_rng(math.prod(shape)).standard_normal(shape)
    return tf.constant(values.astype(dtype.as_numpy_dtype))


def _check_round_trip(
    ops: Any, device: str, dtype: tf.DType, wire: tf.DType, factor: float
) -> None:
    tensors = [_random(shape, dtype) for shape in _SHAPES]
    bucket = _pack(ops, tensors, wire, factor)
    assert f"{device}:0" in bucket.device, bucket.device
    # A rounding to each type, and one of the factor to float32.
    unit = max(_unit(dtype), _unit(wire), 1e-15 if dtype == wire == tf.float64 else 4e-7)
    for tensor, result in zip(tensors, _unpack(ops, bucket, tensors), strict=True):
        assert result.shape == tensor.shape and result.dtype == dtype
        expected = tensor.numpy().astype(np.float64) * factor
        given = result.numpy().astype(np.float64)
        np.testing.assert_allclose(given, expected, rtol=3 * unit, atol=2.0**-24)


def _unit(dtype: tf.DType) -> float:
    return {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}.get(dtype.name, 2.0**-53)


def _check_many(ops: Any) -> None:
    tensors = [tf.fill([1 + i % 40], float(i)) for i in range(_MANY)]
    results = _unpack(ops, _pack(ops, tensors, tf.float32, 0.5), tensors)
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), np.full(1 + i % 40, i / 2, np.float32))


def _check_factor_zero(ops: Any) -> None:
    nothing = tf.constant([math.nan, math.inf, -math.inf] * 50)
    np.testing.assert_array_equal(_pack(ops, [nothing], tf.float32, 0.0).numpy(), np.zeros(160))


def _check_shapes_known_late(ops: Any) -> None:
    @tf.function
    def step(tensor: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:0"):
            shape = tf.shape(tensor, tf.int64)
        bucket = _pack(ops, [tensor], tf.float32, 2.0)
        return _unpack(ops, bucket, [tensor], dynamic_shapes=[shape], shapes=[tensor.shape])[0]

    late = step.get_concrete_function(tf.TensorSpec([None, 3]))
    np.testing.assert_array_equal(late(tf.ones([5, 3])).numpy(), np.full([5, 3], 2.0, np.float32))


def _check_clock(device: str) -> None:
    """Busy time is the device's, and is there without a wait once the device has done its work."""
    clock = StepClock()

    @tf.function
    def step(tensor: tf.Tensor) -> tf.Tensor:
        for _ in range(20):
            tensor = tf.linalg.matmul(tensor, tensor) / 200.0
        ready = clock.ready([tensor])
        with tf.device("CPU:0"):
            count = tf.constant(4, tf.int64)
        clock.back(ready, [tensor], count)
        return tensor

    value = tf.ones([200, 200])
    for _ in range(4):
        last = step(value)
    tf.test.experimental.sync_devices()
    last.numpy()
    times = clock.drain()
    assert len(times.busy_seconds) == 4, f"{len(times.busy_seconds)} steps on {device}"
    assert (times.busy_seconds[1:] > 0).all() and (times.wait_seconds >= 0).all(), times
    assert (times.num_samples == 4).all(), times


def _check_signal(device: str) -> None:
    """What is signalled in a step is there after it, and not after the next one."""
    clock = StepClock()

    @tf.function
    def step() -> tf.Tensor:
        signal = clock.signal()
        clock.receive_signal(signal / 4.0)
        return signal

    taken = []
    for has_changed in (False, True, False):
        clock.send_signal(has_changed)
        signal = step()
        taken.append(clock.take_signal())
        assert f"{device}:0" in signal.device, signal.device
    assert taken == [False, True, False], taken
