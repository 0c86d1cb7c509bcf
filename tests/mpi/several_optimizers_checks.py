"""Models with several optimizers, and ranks that an optimizer leaves out. Run on 2 ranks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from tests.mpi.problems import (
    SEED,
    compile_model,
    fit,
    flat,
    images,
    model,
    scripted,
    sgd,
    some_plans,
)
from tests.mpi.together import meet, shared_folder

B = 16


class TwoParts(keras.Model):
    """Two layers, each with an optimizer of its own, that are called in `train_step` alone."""

    def __init__(self, balancer):
        super().__init__()
        keras.utils.set_random_seed(3)
        self.parts = [keras.layers.Dense(1), keras.layers.Dense(1)]
        for part in self.parts:
            part.build((None, 3))

        def optimizer():
            return hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.05, momentum=0.9), balancer=balancer
            )

        self.compile(optimizer())
        self.second_optimizer = optimizer()

    def train_step(self, data):
        x, y = data
        for part, optimizer in zip(
            self.parts, (self.optimizer, self.second_optimizer), strict=True
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(part(x)[:, 0] - y))
            weights = part.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def check_each_optimizer_goes_on_for_the_weights_that_it_updates():
    """Once, the next run built one of them, for all weights, and refused what was saved."""
    x = np.random.default_rng(0).normal(size=(4 * B, 3)).astype(np.float32)

    def train(epochs, folder=None):
        balancer = hvd.Balancer(B, scripted(some_plans(B)))
        net = TwoParts(balancer)
        dataset = balancer.dataset((x, x.sum(axis=1)), shuffle_seed=SEED)
        more = [] if folder is None else [hvd.callbacks.TrainingStateCallback(folder, balancer)]
        fit(net, balancer, dataset, epochs, more)
        return flat(net)

    with shared_folder() as folder:
        train(1, folder)
        meet()
        np.testing.assert_allclose(train(2, folder), train(2), atol=1e-6)


class NumberOfStep(keras.Sequential):
    """Returns a number of the step that no metric of the model has counted."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = hvd.global_mean(tf.square(self(x, training=True)[:, 0] - y))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"of_step": loss}


def check_numbers_of_a_train_step_are_those_of_the_last_global_batch():
    for left in (1, 5, B):
        _require_number_of_last_step(left)


def _require_number_of_last_step(left):
    x = np.random.default_rng(0).normal(size=(2 * B + left, 3)).astype(np.float32)
    balancer = hvd.Balancer(B, hvd.strategies.static([3, *[1] * (hvd.size() - 1)]))
    keras.utils.set_random_seed(3)
    net = NumberOfStep([keras.layers.Input([3]), keras.layers.Dense(1)])
    net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0), balancer=balancer))
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.DynamicBatchSizeCallback(balancer),
    ]
    history = net.fit(balancer.dataset((x, x.sum(axis=1))), verbose=0, callbacks=callbacks)
    expected = np.mean((net.predict(x[-left:], verbose=0)[:, 0] - x[-left:].sum(axis=1)) ** 2)
    np.testing.assert_allclose(history.history["of_step"], expected, rtol=1e-5)


class OtherNames(keras.Sequential):
    """Returns what its metrics have counted under other names, as Keras's guides do."""

    def __init__(self, layers):
        super().__init__(layers)
        self.total = keras.metrics.Mean(name="total_loss")
        self.error = keras.metrics.MeanAbsoluteError()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)[:, 0]
            losses = tf.square(outputs - y)
            loss = hvd.global_mean(losses)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.total.update_state(losses)
        self.error.update_state(y[:, None], outputs[:, None])
        return {"loss": self.total.result(), "error": self.error.result(), "one": 1.0}


def check_results_of_metrics_are_those_of_all_samples_under_any_name():
    """Once, they counted by the samples of the last step, here one of one rank."""
    x = np.random.default_rng(0).normal(size=(2 * B + 1, 3)).astype(np.float32)
    balancer = hvd.Balancer(B, hvd.strategies.static([3, *[1] * (hvd.size() - 1)]))
    keras.utils.set_random_seed(3)
    net = OtherNames([keras.layers.Input([3]), keras.layers.Dense(1)])
    net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0), balancer=balancer))
    history = fit(net, balancer, balancer.dataset((x, x.sum(axis=1))), 1)
    errors = net.predict(x, verbose=0)[:, 0] - x.sum(axis=1)
    np.testing.assert_allclose(history.history["loss"], np.mean(errors**2), rtol=1e-5)
    np.testing.assert_allclose(history.history["error"], np.mean(np.abs(errors)), rtol=1e-5)
    assert history.history["one"] == [1.0]


def check_the_ramp_is_of_one_optimizer():
    balancer = hvd.Balancer(B, "even")
    dataset = balancer.dataset(images(2 * B), shuffle_seed=SEED)
    net = model()
    compile_model(net, sgd(balancer))
    net.another_optimizer = sgd(balancer)
    ramp = hvd.callbacks.DynamicLearningRateCallback(balancer)
    with pytest.raises(ValueError, match="2 optimizers with a balancer"):
        fit(net, balancer, dataset, 1, [ramp])


def check_a_balancer_weighs_gradients_of_all_ranks():
    balancer = hvd.Balancer(B, "even")
    with pytest.raises(ValueError, match=r"Leave out process_set, or the balancer"):
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(), process_set=hvd.ProcessSet([0]), balancer=balancer
        )
