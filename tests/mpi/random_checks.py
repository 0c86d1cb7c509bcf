"""Random numbers differ between ranks, and are the same in each run. Run on 2 and 3 ranks."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow
from tests.mpi.problems import (
    SEED,
    assert_equal_on_all_ranks,
    compile_model,
    fit,
    hvd_collective,
    images,
    make_timings_usable,
    scripted,
    sgd,
    some_plans,
)

B = 16
NUM_SAMPLES = 65  # One rank alone has a sample in the fifth step.


class Noise(keras.Layer):
    """Has two generators, one of them in a list, and draws from Keras's global one as well."""

    def __init__(self, seen: list[list[float]], **options: Any) -> None:
        super().__init__(**options)
        self.generators = [keras.random.SeedGenerator(3), keras.random.SeedGenerator(4)]
        self._note = lambda *values: seen.append(np.concatenate(values).tolist())

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if not training:
            return inputs
        drawn = [keras.random.uniform((4,), seed=one) for one in (*self.generators, None)]
        kept = keras.ops.cast(inputs[0] != 0, "float32")  # By Dropout.
        tf.numpy_function(self._note, [kept, *drawn], [])
        return inputs


def random_net(seen: list[list[float]], seed: int = 1) -> keras.Model:
    keras.utils.set_random_seed(seed)
    inner = keras.Sequential([keras.layers.Dropout(0.5), Noise(seen)])
    return keras.Sequential([keras.layers.Input((16,)), inner, keras.layers.Dense(4)])


def check_random_numbers_differ_between_ranks_and_are_the_same_again():
    x, y = np.ones((NUM_SAMPLES, 16), np.float32), images(NUM_SAMPLES)[1]

    def run(epochs=2, seed=1, callbacks=()):
        seen: list[list[float]] = []
        net = random_net(seen, seed)
        balancer = hvd.Balancer(B, scripted(some_plans(B)))
        compile_model(net, sgd(balancer))
        dataset = balancer.dataset((x, y), shuffle_seed=SEED)
        fit(net, balancer, dataset, epochs, [one(balancer) for one in callbacks])
        return net, np.array(seen)

    net, seen = run()
    rows = hvd_collective().allgather(seen.ravel()).reshape(-1, *seen.shape)
    for step in range(10):
        for part in (slice(0, 16), slice(16, 20), slice(20, 24), slice(24, 28)):
            assert len(np.unique(rows[:, step, part], axis=0)) == hvd.size(), step
    # Again, and whatever seed the other ranks have set.
    np.testing.assert_array_equal(run(seed=1 + hvd.rank())[1], seen)
    if hvd.rank() == 0:  # It has the numbers, and the states, of plain Keras.
        expected: list[list[float]] = []
        plain = random_net(expected)
        compile_model(plain, keras.optimizers.SGD(0.05))
        plain.fit(x, y, batch_size=B, epochs=2, verbose=0, shuffle=False)
        np.testing.assert_array_equal(seen[:, :24], np.array(expected)[:, :24])
        assert _states(net) == _states(plain)
    # A training that ends after an epoch goes on with the numbers that would have followed.
    with tempfile.TemporaryDirectory() as folder:

        def saving(balancer: hvd.Balancer) -> keras.callbacks.Callback:
            return hvd.callbacks.TrainingStateCallback(folder, balancer)

        first = run(epochs=1, callbacks=[saving])[1]
        second = run(epochs=2, seed=5, callbacks=[saving])[1]
    np.testing.assert_array_equal(np.concatenate([first, second])[:, :24], seen[:, :24])


def _states(net: keras.Model) -> list[list[int]]:
    names = [v for v in net.variables if v.dtype == "int64"]
    return [v.numpy().tolist() for v in names]


def check_seeds_are_split_once_however_often():
    net = random_net([], seed=1 + hvd.rank())
    hvd_dbs.tensorflow.broadcast_variables(net.variables, 0)
    assert_equal_on_all_ranks(np.array(_states(net)).ravel())  # All ranks draw the same.
    whole = _states(net)
    last = hvd.size() - 1
    for root in (0, last, 0):
        hvd.split_random_seeds(net, root_rank=root)
        states = _states(net)
        rows = hvd_collective().allgather(np.array(states).ravel()).reshape(hvd.size(), -1, 2)
        for of_generator in rows[:, :, 0].T:
            assert len(set(of_generator.tolist())) == hvd.size()
        assert (states == whole) == (hvd.rank() == 0)
    if hvd.rank() == 0:
        net.layers[0].layers[1].generators[0].state.assign([7, 5])
    hvd.split_random_seeds(net)
    assert {state[1] for state in _states(net)} == {0, 5}
    state = hvd.elastic.KerasState(_compiled(random_net([])))
    state.sync()
    rows = hvd_collective().allgather(np.array(_states(state.model)).ravel())
    assert len(np.unique(rows, axis=0)) == hvd.size()
    with pytest.raises(ValueError, match=r"Ranks have different variables to broadcast"):
        hvd.split_random_seeds(net if hvd.rank() == 0 else net.layers[-1])
    with pytest.raises(TypeError, match=r"was given an? int; expected a Keras model or layer"):
        hvd.split_random_seeds(3)


def _compiled(net: keras.Model) -> keras.Model:
    net.build((None, 16))
    balancer = hvd.Balancer(B, "even")
    make_timings_usable(balancer)
    compile_model(net, sgd(balancer))
    return net
