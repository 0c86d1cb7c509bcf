"""What a rank's clock sees of its steps. Run on 1 and 3 ranks."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.ops import native
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.weighted_allreduce import weighted_allreduce
from tests.mpi.problems import SEED, compile_model, fit, hvd_collective, images, model, sgd

B = 16


def check_clock_sees_every_step():
    for mode in ("1", "0") if native.loaded() else ("0",):
        os.environ["HVD_DBS_NATIVE"] = mode
        clock = StepClock()
        del os.environ["HVD_DBS_NATIVE"]

        @tf.function
        def step(tensor: tf.Tensor, num_samples: tf.Tensor, clock: StepClock = clock) -> tf.Tensor:
            clock.fed([tensor])
            ready = clock.ready([tensor])
            (reduced,) = weighted_allreduce([tensor], 1.0, name="clocked")
            clock.back(ready, [reduced], num_samples)
            return reduced

        for i in range(5):
            if i != 1:
                clock.ask()
            if i == 2:
                time.sleep(0.1)
            if i == 3:
                clock.restart()
            step(tf.ones([1000]), tf.constant(10 + i, tf.int64))
        times = clock.drain()
        np.testing.assert_array_equal(times.num_samples, [10, 11, 12, 13, 14])
        np.testing.assert_array_equal(np.isnan(times.busy_seconds), [1, 0, 0, 1, 0])
        assert (times.wait_seconds >= 0).all()
        assert (times.wait_seconds < 60).all()
        assert (times.busy_seconds[[1, 2, 4]] >= 0).all()
        np.testing.assert_array_equal(np.isnan(times.data_seconds), [0, 0, 0, 1, 0])
        assert 0.1 <= times.data_seconds[2] < 60
        assert clock.drain().num_samples.size == 0


def check_a_validation_is_not_part_of_a_step():
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    fit(net, balancer, balancer.dataset(images(96), shuffle_seed=SEED), epochs=1)
    times = balancer.clock.drain()
    assert len(times.busy_seconds) == 6
    # The first step of an epoch, which also traces, does not count; all others do.
    assert np.isnan(times.busy_seconds[0])
    assert (times.busy_seconds[1:] > 0).all()
    assert (times.wait_seconds >= 0).all()
    np.testing.assert_array_equal(times.num_samples, balancer.plan.batch_sizes[hvd.rank()])
    balancer.clock.restart()
    net.train_on_batch(*images(B))
    assert np.isnan(balancer.clock.drain().busy_seconds).all()


def check_busy_seconds_leave_the_waiting_out():
    if hvd.size() == 1:
        pytest.skip("one rank waits for nobody")
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))

    def slow(x, y):  # The last rank takes its time over every batch.
        def sleep(ids):
            time.sleep(0.3)
            return ids

        return x, tf.ensure_shape(tf.numpy_function(sleep, [y], tf.int64), [None])

    dataset = balancer.dataset(images(8 * B), shuffle_seed=SEED)
    fit(net, balancer, dataset.map(slow) if hvd.rank() == hvd.size() - 1 else dataset, epochs=1)
    times = balancer.clock.drain()
    rows = hvd_collective().allgather(
        np.array([np.nanmedian(times.busy_seconds), np.nanmedian(times.wait_seconds)])
    )
    # All steps took the slow rank's time; only the clock knows whose time it was.
    assert rows[-1, 0] - rows[0, 0] > 0.15
    assert rows[0, 1] - rows[-1, 1] > 0.15
