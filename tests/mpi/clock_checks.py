"""What a rank's clock sees of its steps. Run on 1 and 3 ranks."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.ops import native
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.weighted_allreduce import weighted_allreduce
from hvd_dbs.tensorflow.gradient_reducer import GradientReducer
from tests.mpi.problems import SEED, compile_model, fit, hvd_collective, images, model, sgd

B = 16


def check_clock_sees_every_step():
    for mode in ("1", "0") if native.loaded() else ("0",):
        os.environ["HVD_DBS_NATIVE"] = mode
        clock, seen = StepClock(), []
        del os.environ["HVD_DBS_NATIVE"]

        def looked_at(tensor: tf.Tensor, clock: StepClock = clock, seen: list = seen) -> tf.Tensor:
            """The same; notes in which part of the step this is."""
            look = lambda tensor: (seen.append(clock.waits_for_others), tensor)[1]  # noqa: E731
            return tf.ensure_shape(tf.numpy_function(look, [tensor], tensor.dtype), tensor.shape)

        @tf.function
        def step(tensor: tf.Tensor, num_samples: tf.Tensor, clock: StepClock = clock) -> tf.Tensor:
            clock.fed([tensor])
            ready = clock.ready([looked_at(tensor)])
            with tf.control_dependencies([ready]):
                tensor = looked_at(tensor)
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
            if i == 4:
                clock.exclude(1000.0)
            step(tf.ones([1000]), tf.constant(10 + i, tf.int64))
        assert seen == 5 * [False, True] and not clock.waits_for_others, (mode, seen)
        newest = clock.peek(2)
        times = clock.drain()
        assert newest[1] == (times.busy_seconds[4], 14) and newest[0][1] == 13
        assert clock.peek(2) == []
        np.testing.assert_array_equal(times.num_samples, [10, 11, 12, 13, 14])
        np.testing.assert_array_equal(np.isnan(times.busy_seconds), [1, 0, 0, 1, 0])
        assert (times.wait_seconds >= 0).all()
        assert (times.wait_seconds < 60).all()
        assert (times.busy_seconds[[1, 2]] >= 0).all()
        assert -1000 <= times.busy_seconds[4] < -900  # Nearly all of it was no work of the step.
        np.testing.assert_array_equal(np.isnan(times.data_seconds), [0, 0, 0, 1, 0])
        assert 0.1 <= times.data_seconds[2] < 60
        # Nobody notes buckets: there is one, which all gradients are in.
        np.testing.assert_array_equal(times.first_bucket_seconds, times.busy_seconds)
        np.testing.assert_array_equal(times.overlap_seconds, 0.0)
        np.testing.assert_array_equal(times.last_bucket_seconds, times.wait_seconds)
        assert clock.drain().num_samples.size == 0
        for num_samples in (10, -1, -1, 7):  # Gradients are reduced three times in the first step.
            time.sleep(0.1 if num_samples == -1 else 0.0)
            step(tf.ones([1000]), tf.constant(num_samples, tf.int64))
        assert [samples for _, samples in clock.peek(4)] == [10, 7]
        times = clock.drain()
        np.testing.assert_array_equal(times.num_samples, [10, 7])
        assert 0.2 <= times.busy_seconds[0] < 60
        np.testing.assert_array_equal(np.isnan(times.overlap_seconds), [1, 0])
        for num_samples in (-1, 3):  # Of a step that another call has had the beginning of.
            step(tf.ones([1000]), tf.constant(num_samples, tf.int64))
        np.testing.assert_array_equal(clock.drain().num_samples, [3])
        clock.ready([tf.ones([1])])  # A step that another rank's end has interrupted.
        assert clock.waits_for_others
        clock.restart()
        assert not clock.waits_for_others, mode


@contextlib.contextmanager
def training(mode: str = "auto", strategy: str = "adaptive") -> Iterator[hvd.Balancer]:
    """A balancer whose epoch is open, for steps that need no data."""
    os.environ["HVD_DBS_NATIVE"] = mode
    native.forget_agreement()
    balancer = hvd.Balancer(B, strategy)
    balancer.dataset(np.arange(100 * B))
    balancer.loop.begin_training()
    balancer.loop.begin_epoch(0)
    try:
        yield balancer
    finally:
        balancer.loop.end_training()
        del os.environ["HVD_DBS_NATIVE"]
        native.forget_agreement()


def check_what_a_layer_does_is_no_wait_for_data():
    """What has an effect, such as Python in a layer, ran before the data were noted to be there."""
    slow = threading.Event()
    for mode in ("1", "0") if native.loaded() else ("0",):
        os.environ["HVD_DBS_NATIVE"] = mode
        clock = StepClock()
        del os.environ["HVD_DBS_NATIVE"]

        @tf.function
        def step(tensor: tf.Tensor, clock: StepClock = clock) -> tf.Tensor:
            computed = tf.numpy_function(
                lambda given: (slow.wait(0.5), given)[1], [tensor], tensor.dtype
            )
            computed = tf.ensure_shape(computed, tensor.shape)
            ready = clock.ready([*clock.fed([tensor]), computed])
            (reduced,) = weighted_allreduce([computed], 1.0, name="computed")
            clock.back(ready, [reduced], tf.constant(1, tf.int64))
            return reduced

        for _ in range(2):
            clock.ask()
            step(tf.ones([10]))
        times = clock.drain()
        assert times.busy_seconds[1] >= 0.5, mode
        assert times.data_seconds[1] < 0.5, mode


def check_data_are_noted_before_gradients_are():
    if native.loaded() is None:
        pytest.skip("operations of the native library")
    reducer = GradientReducer(hvd.Balancer(B))
    step = tf.function(lambda batch: reducer([2 * batch])[0])
    graph = step.get_concrete_function(tf.TensorSpec([2])).graph
    (ready,) = [one for one in graph.get_operations() if one.type == "HvdDbsStepReady"]
    assert "HvdDbsStepFed" in [one.type for one in ready.control_inputs]


def check_a_change_signal_reaches_all_ranks_with_the_gradients():
    for mode in ("1", "0") if native.loaded() else ("0",):
        for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
            with training(mode) as balancer:
                reduce = GradientReducer(balancer)

                @tf.function
                def step(gradient: tf.Tensor, reduce: GradientReducer = reduce) -> list[tf.Tensor]:
                    return reduce([None, gradient])

                received = []
                for i in range(6):
                    if i in (2, 4) and hvd.rank() == hvd.size() - 1:
                        balancer.clock.send_signal(i == 2)
                    _, mean = step(tf.fill([1000], tf.cast(hvd.rank(), dtype)))
                    received.append(balancer.clock.take_signal())
                    expected = np.average(range(hvd.size()), weights=balancer.plan.batch_sizes)
                    np.testing.assert_allclose(tf.cast(mean, tf.float64), expected, rtol=1e-2)
            assert received == [False, False, True, True, False, False], (mode, dtype)


def check_a_change_signal_needs_no_bucket_of_its_own():
    """What has none to travel with stays: a sum more in each step is not worth it.

    Nor is anything signalled where nobody heeds it.
    """
    with training(strategy="dbs") as balancer:
        assert len(GradientReducer(balancer)([tf.ones([2])])) == 1
        assert not balancer.clock.sends_signals
    with training() as balancer:
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))
        for gradients in (
            [slices],
            [None, slices],
            [tf.zeros([0]), slices],
        ):
            balancer.clock.send_signal(True)
            reduced = GradientReducer(balancer)(gradients)
            assert len(reduced) == len(gradients)
            assert not balancer.clock.take_signal() and not balancer.clock.sends_signals
        reduced = GradientReducer(balancer, sparse_as_dense=True)([slices])
        assert len(reduced) == 1
        assert balancer.clock.take_signal() and balancer.clock.sends_signals
    sizes = []
    for signal in ([], [tf.constant(1.0)]):

        @tf.function
        def step(signal: list[tf.Tensor] = signal) -> list[tf.Tensor]:
            # The first bucket is full and the second beyond its size.
            tensors = [tf.ones([8]), tf.ones([20]), *signal]
            return weighted_allreduce(tensors, 1.0, bucket_bytes=32, name="signal")

        operations = step.get_concrete_function().graph.get_operations()
        sizes.append(sum(operation.type == "HorovodAllreduce" for operation in operations))
    assert sizes[0] == sizes[1] > 0


def check_a_change_of_pace_brings_the_next_round_forward():
    """On all ranks after the same step, however far off it was."""
    balancer = hvd.Balancer(B, "adaptive")
    net = model()
    compile_model(net, sgd(balancer))
    is_slow, rounds, begun = [False], balancer.loop._rounds, []

    def slow(x, y):
        def sleep(ids):
            if is_slow[0]:
                time.sleep(0.3)
            return ids

        return x, tf.ensure_shape(tf.numpy_function(sleep, [y], tf.int64), [None])

    class Peace(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 12:
                rounds.finish()
                rounds._steps_in_round, rounds._steps_to_next = 0, 1000
            if batch > 12 and rounds.are_under_way:
                begun.append(batch)
            if batch == 140:
                is_slow[0] = hvd.rank() == hvd.size() - 1

    data = balancer.dataset(images(150 * B), shuffle_seed=SEED).map(slow)
    fit(net, balancer, data, epochs=1, callbacks=[Peace()])
    assert rounds.pace.job_size == hvd.size()  # By which a change has to be larger.
    rows = hvd_collective().allgather(np.array([len(begun), begun[0] if begun else -1]))
    assert (rows == rows[0]).all()
    assert rows[0, 0] > 0


class Steps:
    """All steps of a balancer, also those that its rounds read."""

    def __init__(self, balancer):
        self._seen, drain = [], balancer.clock.drain

        def note():
            self._seen.append(drain())
            return self._seen[-1]

        balancer.clock.drain = note

    def __getattr__(self, name):
        return np.concatenate([getattr(times, name) for times in self._seen])


def check_a_validation_is_not_part_of_a_step():
    balancer = hvd.Balancer(B, "even")
    times = Steps(balancer)
    net = model()
    compile_model(net, sgd(balancer))
    fit(net, balancer, balancer.dataset(images(96), shuffle_seed=SEED), epochs=1)
    assert len(times.busy_seconds) == 6
    # The first step of an epoch, which also traces, does not count; all others do.
    assert np.isnan(times.busy_seconds[0])
    assert (times.busy_seconds[1:] > 0).all()
    assert (times.wait_seconds >= 0).all()
    np.testing.assert_array_equal(times.num_samples, balancer.plan.batch_sizes[hvd.rank()])
    balancer.loop.begin_training()
    balancer.loop.begin_epoch(0)
    balancer.clock.restart()
    net.train_on_batch(*images(B))
    assert np.isnan(balancer.clock.drain().busy_seconds).all()
    balancer.loop.end_training()


def check_busy_seconds_leave_the_waiting_out():
    if hvd.size() == 1:
        pytest.skip("one rank waits for nobody")
    balancer = hvd.Balancer(B, "even")
    times = Steps(balancer)
    net = model()
    compile_model(net, sgd(balancer))

    def slow(x, y):  # The last rank takes its time over every batch.
        def sleep(ids):
            time.sleep(0.3)
            return ids

        return x, tf.ensure_shape(tf.numpy_function(sleep, [y], tf.int64), [None])

    dataset = balancer.dataset(images(8 * B), shuffle_seed=SEED)
    fit(net, balancer, dataset.map(slow) if hvd.rank() == hvd.size() - 1 else dataset, epochs=1)
    rows = hvd_collective().allgather(
        np.array([np.nanmedian(times.busy_seconds), np.nanmedian(times.wait_seconds)])
    )
    # All steps took the slow rank's time; only the clock knows whose time it was.
    assert rows[-1, 0] - rows[0, 0] > 0.15
    assert rows[0, 1] - rows[-1, 1] > 0.15
