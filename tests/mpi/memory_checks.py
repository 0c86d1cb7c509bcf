"""Bounds that ranks find out by themselves, and steps that do not fit. On 2 ranks."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import hvd_dbs.keras as hvd
from hvd_dbs.job.profile_file import read_profile
from tests.mpi.exactness_data import CLASSES, points
from tests.mpi.exactness_models import cross_entropy
from tests.mpi.problems import SEED, fit, flat, hvd_collective, scripted
from tests.mpi.profile_checks import ranks_on
from tests.mpi.together import captured, new_folder

B = 16
FITS = 5
"""Samples that rank 0's memory holds in these checks; that of others holds all."""


class Full(layers.Layer):
    """Runs out of memory on rank 0, as a device does, where a batch is too large for it."""

    def __init__(self, fits=FITS):
        super().__init__()
        self.fits, self.tried = fits, []

    def call(self, x, training=False):
        def allocate(num_samples):
            self.tried.append(int(num_samples))
            if hvd.rank() == 0 and num_samples > self.fits:
                raise MemoryError("on purpose")  # TensorFlow's ResourceExhaustedError.
            return num_samples

        if not training:
            return x
        num_samples = tf.numpy_function(allocate, [tf.shape(x)[0]], tf.int32)
        return x + 0 * tf.cast(tf.ensure_shape(num_samples, []), x.dtype)


class SmallEverywhere(Full):
    """Runs out of memory on all ranks."""

    def call(self, x, training=False):
        num_samples = tf.numpy_function(self.allocate, [tf.shape(x)[0]], tf.int32)
        return x + 0 * tf.cast(tf.ensure_shape(num_samples, []), x.dtype)

    def allocate(self, num_samples):
        if num_samples > self.fits:
            raise MemoryError("on purpose")
        return num_samples


def _net(full, width=8):
    keras.utils.set_random_seed(1)
    hidden = [layers.Dense(width), layers.BatchNormalization(), full, layers.Dropout(0.3, seed=2)]
    return keras.Sequential([layers.Input((5,)), *hidden, layers.Dense(CLASSES)])


def _train(full, balancer, epochs=2, width=8):
    net = _net(full, width)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), balancer=balancer)
    net.compile(optimizer, loss=cross_entropy(), metrics=["accuracy"])
    data = balancer.dataset(points(), shuffle_seed=SEED)
    history = fit(net, balancer, data, epochs).history
    return net, history


def check_a_rank_finds_its_bound_and_changes_nothing_by_it():
    full = Full()
    with captured("hvd_dbs.job.session") as records:
        found = hvd.Balancer(B, "even", max_batch_size="auto")
        net, history = _train(full, found)
    assert found.plan.batch_sizes[0] == FITS
    lines = [record.getMessage() for record in records]
    none = ", None" * (hvd.size() - 1)
    expected = [f"memory bounds local batch sizes to [{FITS}{none}]"]
    assert lines == (expected if hvd.rank() == 0 else [])
    most = [FITS] + [B] * (hvd.size() - 1)
    given = hvd.Balancer(B, "even", max_batch_size=most)
    expected_net, expected_history = _train(Full(), given)
    for one, other in zip(net.variables, expected_net.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.path)
    np.testing.assert_array_equal(flat(net), flat(expected_net))
    for name in ("loss", "accuracy"):
        assert history[name] == expected_history[name]


def check_a_search_leaves_ranks_at_the_same_order_of_a_stream():
    """Once, a rank that had tried more often read a reshuffled stream in another order."""
    num_samples, seen = 3 * B, []

    class Note(layers.Layer):
        def call(self, x, training=False):
            noted = tf.numpy_function(lambda ids: seen.extend(ids) or ids, [x[:, 0]], tf.float32)
            return x + 0 * tf.ensure_shape(noted, [None])[:, tf.newaxis]

    class EpochBegins(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.clear()

    ids = np.repeat(np.arange(num_samples, dtype=np.float32)[:, np.newaxis], 5, 1)
    stream = tf.data.Dataset.from_tensor_slices((ids, np.zeros(num_samples, np.int64)))
    balancer = hvd.Balancer(B, "even", max_batch_size="auto")
    net = keras.Sequential([layers.Input((5,)), Note(), Full(), layers.Dense(CLASSES)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), balancer=balancer)
    net.compile(optimizer, loss=cross_entropy())
    data = balancer.dataset(hvd.data.Stream(stream.shuffle(num_samples, seed=1)))
    fit(net, balancer, data, 2, callbacks=[EpochBegins()])
    assert balancer.plan.batch_sizes[0] == FITS
    found = hvd_collective().allgather(np.bincount(np.array(seen, int), minlength=num_samples))
    assert found.sum(0).tolist() == [1] * num_samples


def check_what_was_found_is_in_the_profile():
    path = new_folder() / "cluster.json"
    with ranks_on("fast device", "slow device") as ranks:
        _train(Full(), ranks.balancer(B, "dbs", max_batch_size="auto", profile=path))
        full = Full()
        balancer = ranks.balancer(B, "dbs", max_batch_size="auto", profile=path)
        _train(full, balancer)
    assert balancer.plan.batch_sizes[0] <= FITS
    if hvd.rank() == 0:
        assert max(full.tried) <= FITS
        names = list(read_profile(path, _fingerprint(), B).most)
        assert len(names) == 1 and names[0].startswith("fast device")


def check_what_bounds_a_model_does_not_bound_the_next_one():
    path = new_folder() / "cluster.json"
    with ranks_on("fast device", "slow device") as ranks, captured("hvd_dbs.job.session") as lines:
        balancer = ranks.balancer(B, "even", max_batch_size="auto", profile=path)
        _train(Full(), balancer)
        assert balancer.plan.batch_sizes[0] == FITS
        _train(Full(11), balancer, width=6)
    assert set(balancer.plan.batch_sizes) == {B // hvd.size()}
    if hvd.rank() == 0:
        bounds = [line.getMessage().rpartition(" to ")[2] for line in lines]
        none = ", None" * (hvd.size() - 1)
        assert bounds == [f"[{FITS}{none}]", f"[10{none}]"]  # 95 % of 11.
        for width, most in ((8, FITS), (6, 10)):
            known = read_profile(path, _fingerprint(width), B).most
            assert list(known.values()) == [most]


def check_a_global_batch_that_has_grown_is_searched_again():
    full, balancer = Full(20), hvd.Balancer(B, "even", max_batch_size="auto")
    _train(full, balancer)
    assert set(balancer.plan.batch_sizes) == {B // hvd.size()}
    full.tried.clear()
    _train(full, balancer)
    assert max(full.tried) == B // hvd.size()  # All of a global batch is known to fit.
    balancer.resize(3 * B)
    _train(full, balancer)
    assert balancer.plan.batch_sizes[0] == 19  # 95 % of 20.
    full.tried.clear()
    _train(full, balancer)
    assert hvd.rank() != 0 or max(full.tried) == 19


def check_a_global_batch_may_grow_for_a_smaller_model():
    balancer = hvd.Balancer(2 * hvd.size(), "even", max_batch_size="auto")
    _train(SmallEverywhere(2), balancer)
    balancer.resize(B)
    with pytest.raises(ValueError, match="allows at most"):
        _train(SmallEverywhere(2), balancer)
    _train(Full(11), balancer, width=6)
    assert set(balancer.plan.batch_sizes) == {B // hvd.size()}


def check_a_global_batch_that_grows_after_a_fit_was_interrupted_is_searched():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    net, balancer = _net(Full(20)), hvd.Balancer(B, "even", max_batch_size="auto")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), balancer=balancer)
    net.compile(optimizer, loss=cross_entropy())
    data = balancer.dataset(points(), shuffle_seed=SEED)
    with pytest.raises(KeyboardInterrupt):
        fit(net, balancer, data, callbacks=[Stop()])
    balancer.resize(3 * B)  # It waits for the end of the epoch.
    fit(net, balancer, data)
    assert balancer.plan.batch_sizes[0] == 19


def check_bounds_that_are_found_hold_after_the_round_of_a_fit_that_was_interrupted():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                raise KeyboardInterrupt

    plan = (B - hvd.size() + 1, *(hvd.size() - 1) * [1])
    balancer = hvd.Balancer(B, scripted([plan]), every=1, max_batch_size="auto")
    data = balancer.dataset(points(), shuffle_seed=SEED)
    for fits, callbacks in ((B, [Stop()]), (FITS, [])):
        net = _net(Full(fits), width=fits)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), balancer=balancer)
        net.compile(optimizer, loss=cross_entropy())
        with contextlib.suppress(KeyboardInterrupt):
            fit(net, balancer, data, epochs=1, callbacks=callbacks)
    plans = hvd_collective().allgather(np.array(balancer.plan.batch_sizes))
    np.testing.assert_array_equal(plans, [(FITS, B - FITS)] * 2)


def _fingerprint(width=8):
    from hvd_dbs.keras.model_fingerprint import model_fingerprint

    net = _net(Full(), width)
    net.compile("sgd", "mse")
    return model_fingerprint(net)


def check_a_global_batch_that_does_not_fit_is_an_error_on_all_ranks():
    with pytest.raises(ValueError, match="allows at most"):
        _train(SmallEverywhere(2), hvd.Balancer(B, max_batch_size="auto"))
    with pytest.raises(ValueError, match="memory of rank 0 does not hold a step of one sample"):
        _train(Full(0), hvd.Balancer(B, max_batch_size="auto"))
    with pytest.raises(ValueError, match="was given with micro_batch_size"):
        hvd.Balancer(B, max_batch_size="auto", micro_batch_size=2)
    balancer = hvd.Balancer(B, max_batch_size="auto")
    with pytest.raises(ValueError, match="a loop of your own is not looked into"):
        balancer.epochs(balancer.dataset(points()), 1)


def check_a_step_that_does_not_fit_is_named():
    """By the rank that it happens on; alone, since the others wait for it."""
    if hvd_collective().size > 1:
        pytest.skip("on 1 rank")
    with pytest.raises(MemoryError, match=r"Rank 0 .* in a step of 16 samples.*: 14"):
        _train(Full(), hvd.Balancer(B))
    with pytest.raises(MemoryError, match=r"micro-batches of 8 samples.*micro_batch_size=4"):
        _train(Full(), hvd.Balancer(B, micro_batch_size=8))
    _train(Full(), hvd.Balancer(B, micro_batch_size=4))
