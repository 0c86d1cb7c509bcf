"""What ranks measure of their communication, on links and ranks that are slow. Run on 2 and 3."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.balancing import Measurement, Strategy
from hvd_dbs.balancing.solvers import Proportional
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.comm.background import BackgroundThread
from hvd_dbs.comm.negotiation_time import negotiation_seconds
from hvd_dbs.job.journal import read_journal
from hvd_dbs.job.journal_entries import RoundEntry
from hvd_dbs.ops import buckets, native
from hvd_dbs.ops.weighted_allreduce import weighted_allreduce
from hvd_dbs.tensorflow import gradient_reducer
from hvd_dbs.watchdog.exit_barrier import own_communicator
from hvd_dbs.watchdog.mpi_inbox import MpiInbox
from tests.mpi.problems import SEED, compile_model, fit, hvd_collective, images, sgd
from tests.mpi.together import meet, new_folder, optimized_graphs

B = 12
LINK = 0.1
"""Seconds that each bucket takes longer on the slow link."""
SLOW = 1.5
"""Seconds that a step of the slow rank takes longer."""
NOISE = 0.5
"""Seconds that other programs on the machine may take."""

seen: list[Measurement] = []


class Seen(LastRound):
    """Keeps what a rank's time model is given."""

    def update(self, state: Any, measurement: Measurement) -> Any:
        seen.append(measurement)
        return super().update(state, measurement)


def slept(tensor: tf.Tensor, seconds: float) -> tf.Tensor:
    """The tensor, later; in the graph."""

    def sleep(value: Any) -> Any:
        time.sleep(seconds)
        return value

    # TensorFlow runs what is stateful in the order in which it was traced.
    later = tf.numpy_function(sleep, [tensor], tensor.dtype, stateful=False)
    return tf.ensure_shape(later, tensor.shape)


class SlowBackwards(keras.layers.Layer):
    """Passes its input on; gradients of the layers before it come later."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def call(self, x: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def passed(x: tf.Tensor) -> Any:
            return tf.identity(x), lambda gradient: slept(gradient, self.seconds)

        return passed(x)


@contextlib.contextmanager
def several_buckets(link_seconds: float = 0.0) -> Iterator[None]:
    """Gradients in a bucket a layer, on a link where each takes longer."""
    send = buckets.hvd.allreduce

    def slow(bucket: tf.Tensor, **options: Any) -> tf.Tensor:
        return slept(send(bucket, **options), link_seconds)

    reduce = partial(weighted_allreduce, bucket_bytes=200)
    with (
        mock.patch.object(gradient_reducer, "weighted_allreduce", reduce),
        mock.patch.object(buckets.hvd, "allreduce", slow if link_seconds else send),
    ):
        yield


def trained(forwards: float = 0.0, backwards: float = 0.0) -> list[RoundEntry]:
    """Rounds of two epochs, on rank 0, where this rank is slow in a part of its step."""
    seen.clear()
    path = new_folder() / "run.jsonl"
    strategy = Strategy("seen", model=Seen(), solver=Proportional(), every="epoch")
    bounds = B // hvd.size()  # The plan stays.
    balancer = hvd.Balancer(B, strategy, journal=path, min_batch_size=bounds, max_batch_size=bounds)
    keras.utils.set_random_seed(1)
    net = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            SlowBackwards(backwards),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )
    compile_model(net, sgd(balancer))
    data = balancer.dataset(images(4 * B), shuffle_seed=SEED)
    if forwards:
        data = data.map(lambda x, y: (slept(x, forwards), y))
    fit(net, balancer, data, epochs=2)
    return list(read_journal(path)[0][0].rounds) if hvd.rank() == 0 else []


def columns(name: str) -> np.ndarray:
    """What the time models of all ranks were given, shape `[size, rounds]`."""
    mine = np.array([getattr(measurement, name)[0] for measurement in seen])
    return np.asarray(hvd_collective().allgather(mine))


def check_communication_is_measured_and_no_slow_rank_is_part_of_it():
    if not native.loaded():
        pytest.skip("without the native library all gradients are one bucket")
    last = hvd.size() - 1
    for slow_rank, forwards, backwards in ((None, 0, 0), (0, SLOW, 0), (last, 0, SLOW)):
        is_slow = hvd.rank() == slow_rank
        with several_buckets(LINK):
            rounds = trained(forwards * is_slow, backwards * is_slow)
        busy, first = columns("busy_seconds"), columns("first_bucket_seconds")
        overlap, last_bucket = columns("overlap_seconds"), columns("last_bucket_seconds")
        assert (first > 0).all() and (first <= busy).all()
        # Two buckets at least are sent before the last one; no rank's slowness is communication.
        assert (overlap >= 2 * LINK).all() and (overlap < 2 * LINK + NOISE).all(), overlap
        assert (last_bucket >= LINK).all() and (last_bucket < LINK + NOISE).all(), last_bucket
        assert (overlap == overlap[0]).all() and (last_bucket == last_bucket[0]).all()
        if slow_rank is not None:
            assert (busy[slow_rank] > SLOW - NOISE).all(), busy
            assert ((first[slow_rank] > SLOW - NOISE) == bool(forwards)).all(), first
        for entry in rounds:
            finish = np.maximum(busy, first + overlap)[:, rounds.index(entry)]
            expected = finish.max() + entry.last_bucket_seconds
            assert abs(entry.step_seconds - expected) < NOISE, (entry, expected)
            assert 0 < entry.negotiation_seconds < NOISE


def check_a_quick_link_hides_what_one_bucket_does_not():
    with several_buckets():
        trained()
    several = columns("overlap_seconds")
    assert (several < LINK).all() and (several >= 0).all()
    assert (several > 0).all() == bool(native.loaded())
    trained()
    assert (columns("overlap_seconds") == 0).all()
    assert (columns("first_bucket_seconds") == columns("busy_seconds")).all()
    assert (columns("last_bucket_seconds") > 0).all()


def check_negotiation_waits_for_all_ranks_each_time():
    ranks, thread = hvd_collective(), BackgroundThread("negotiation")
    for _ in range(3):  # What TensorFlow computes once and remembers waits for nobody.
        meet()
        if hvd.rank() == 0:
            negotiated = thread.start(lambda: _negotiation_seconds(ranks))
            with pytest.raises(TimeoutError):
                negotiated.result(NOISE)
        meet()
        seconds = negotiated.result(60) if hvd.rank() == 0 else _negotiation_seconds(ranks)
        assert 0 < seconds < NOISE
    thread.close()


def _negotiation_seconds(ranks):
    with optimized_graphs():  # Which compute constants beforehand.
        return negotiation_seconds(ranks)


def check_a_failure_is_known_to_those_who_wait():
    """Over MPI, though the others only wait in an operation of Horovod's."""
    long = "out of memory: größer " * 200
    for text, received in (
        (long, long.encode()[:2000].decode(errors="ignore")),
        ("no such file: a\udcff.jpg", r"no such file: a\udcff.jpg"),
    ):
        inbox = MpiInbox(own_communicator().Dup())
        if hvd.rank() == 0:
            for one in (text, "second"):
                inbox.send(one, limit=20.0)
        hvd.allreduce(tf.zeros([1]), name="wait")
        assert inbox.text == ("" if hvd.rank() == 0 else received)
        inbox.close()
