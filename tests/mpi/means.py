"""Weighted means of all ranks' tensors: native, by the reference implementation and by NumPy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from hvd_dbs.ops import native
from hvd_dbs.ops.weighted_allreduce import weighted_allreduce


def random_tensor(shape: Sequence[int], dtype: tf.DType, seed: int = 0) -> tf.Tensor:
    random = np.random.default_rng(1000 * seed + hvd.rank())
    return tf.cast(random.standard_normal(shape), dtype)


def both_means(tensors: list[Any], weight: Any, **options: Any) -> tuple[list[Any], list[Any]]:
    """What the native library and what the reference implementation makes of it."""
    assert native.agreed() is not None, native.reason_for_absence()
    ours = weighted_allreduce(tensors, weight, **options)
    os.environ["HVD_DBS_NATIVE"] = "0"
    native.forget_agreement()
    try:
        references = weighted_allreduce(tensors, weight, **options)
    finally:
        del os.environ["HVD_DBS_NATIVE"]
        native.forget_agreement()
    return ours, references


def expected_mean(tensor: tf.Tensor, weight: float) -> np.ndarray:
    """The weighted mean in float64, from everybody's tensors."""
    rows = hvd.allgather(tf.cast(tensor, tf.float64)[tf.newaxis], name="expected").numpy()
    weights = hvd.allgather(tf.constant([weight], tf.float64), name="weights").numpy()
    rows = np.where(weights.reshape(-1, *[1] * tensor.ndim) > 0, rows, 0)
    total = weights.sum()
    return np.tensordot(weights / total, rows, 1) if total > 0 else np.zeros(tensor.shape)


def assert_near(actual: tf.Tensor, expected: Any, dtype: tf.DType) -> None:
    tolerance = {2: 2e-3 if dtype == tf.float16 else 1.6e-2, 4: 2e-6, 8: 1e-14}[dtype.size]
    scale = max(1e-30, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(
        tf.cast(actual, tf.float64).numpy() / scale,
        np.asarray(expected, np.float64) / scale,
        atol=tolerance,
        rtol=tolerance,
    )
