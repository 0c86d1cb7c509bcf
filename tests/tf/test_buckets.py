"""When buckets of gradients are sent."""

from __future__ import annotations

import pytest
import tensorflow as tf

import hvd_dbs.tensorflow as hvd
from hvd_dbs.ops import native

THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
MEGABYTE = 2**20


def waits(shapes, bucket_bytes):
    """Which buckets wait for the sum of another one before they are sent."""
    tensors = [tf.zeros(shape) for shape in shapes]

    @tf.function
    def step():
        return hvd.weighted_allreduce(tensors, 1.0, total_weight=1.0, bucket_bytes=bucket_bytes)

    sums = [
        operation
        for operation in step.get_concrete_function().graph.get_operations()
        if operation.type == "HorovodAllreduce"
    ]
    assert len(sums) == len(shapes)
    return [any(other in sums for other in operation.control_inputs) for operation in sums]


@pytest.mark.skipif(native.loaded() is None, reason=native.reason_for_absence())
@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(24 * MEGABYTE, [False, False]), (None, [False, True]), (0, [False, False])],
)
def test_buckets_that_horovod_would_fuse_wait_for_each_other(monkeypatch, threshold, expected):
    hvd.init()
    monkeypatch.delenv(THRESHOLD, raising=False)
    if threshold is not None:
        monkeypatch.setenv(THRESHOLD, str(threshold))
    shapes = [(4 * MEGABYTE,), (4 * MEGABYTE,)]  # Of float32: 16 MiB.
    assert waits(shapes, bucket_bytes=20 * MEGABYTE) == expected
