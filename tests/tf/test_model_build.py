"""What is built before the first step, so that TensorFlow traces it once; and what is not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.keras.internals import has_unbuilt_metrics
from hvd_dbs.keras.model_build import build_for_data

X, Y = np.arange(32, dtype=np.float32).reshape(8, 4) / 32, np.ones((8, 1), np.float32)
DATA = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


class Counted(keras.Sequential):
    """Notes each trace of a training step."""

    def __init__(self, layers):
        super().__init__(layers)
        self.traces = []

    def call(self, x, training=None):
        if training:
            self.traces.append(x.shape)
        return super().call(x, training=training)


class WithStep(Counted):
    """Has a step of its own, whose metrics get what it likes."""

    def train_step(self, data):
        return super().train_step((*data, None))


def compiled(kind=Counted, with_input=True):
    keras.utils.set_random_seed(1)
    model = kind([keras.Input((4,))] * with_input + [keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    return model


@pytest.fixture(scope="module", autouse=True)
def _begun():
    hvd.init()


@pytest.mark.parametrize("with_input", [True, False])
def test_a_balanced_step_is_traced_once_and_learns_the_same(with_input):
    plain = compiled(with_input=with_input)
    expected = plain.fit(DATA, epochs=2, shuffle=False, verbose=0).history
    model = compiled(with_input=with_input)
    balancer = hvd.Balancer(4, "even")
    hvd.DistributedOptimizer(model.optimizer, balancer=balancer)
    found = model.fit(
        balancer.dataset((X, Y)),
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.DynamicBatchSizeCallback(balancer),
        ],
    ).history
    assert len(model.traces) == 1
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5)


def test_metrics_of_a_step_of_the_models_own_are_left_to_it():
    model = compiled(WithStep)
    assert build_for_data(model, DATA)
    assert has_unbuilt_metrics(model)
    model.fit(DATA, verbose=0)
    assert not has_unbuilt_metrics(model)


def test_metrics_of_a_call_of_the_models_own_are_left_to_its_step():
    """It may have other outputs in training."""

    class WithCall(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.dense.build((None, 4))
            self.built = True

        def call(self, x, training=None):
            return self.dense(x)

    model = WithCall()
    model.compile("sgd", "mse", metrics=["mae"])
    assert build_for_data(model, DATA)
    assert has_unbuilt_metrics(model) and model.optimizer.built
    assert set(model.fit(DATA, verbose=0).history) == {"loss", "mae"}


def test_a_built_model_that_data_do_not_fit_keeps_its_variables():
    model = compiled()
    weights = model.get_weights()
    assert build_for_data(model, DATA.map(lambda x, y: (x[:, :2], y)))
    assert has_unbuilt_metrics(model) and model.optimizer.built
    np.testing.assert_array_equal(model.get_weights()[0], weights[0])


def test_a_model_that_cannot_be_called_is_left_to_its_step():
    class Empty(keras.Model):
        pass

    model = Empty()
    model.compile("sgd")
    assert not build_for_data(model, DATA)
    assert not build_for_data(compiled(with_input=False), None)
