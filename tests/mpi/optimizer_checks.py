"""Optimizers of all kinds apply the mean of all ranks. Run on 3 ranks, some checks on 2."""

from __future__ import annotations

import gc
import threading
from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.comm.collective import connect
from tests.mpi.problems import (
    SEED,
    assert_equal_on_all_ranks,
    compile_model,
    fit,
    flat,
    images,
    model,
    one_process_run,
    scripted,
    sgd,
    some_plans,
    weights_of_all_ranks,
)
from tests.mpi.together import shared_folder

B = 16


def _require_weights_of_one_process(make_optimizer):
    arrays = images(70)
    balancer = hvd.Balancer(B, scripted(some_plans(B)))
    net = model()
    compile_model(net, hvd.DistributedOptimizer(make_optimizer(), balancer=balancer))
    fit(net, balancer, balancer.dataset(arrays, shuffle_seed=SEED))
    expected, _ = one_process_run(model(), arrays, B, make_optimizer())
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)


def check_adam_with_clipping_and_decay_equals_one_process():
    def adam():
        return keras.optimizers.AdamW(0.01, weight_decay=0.01, global_clipnorm=0.5)

    _require_weights_of_one_process(adam)


class DecayingRate(keras.optimizers.schedules.LearningRateSchedule):
    """Keras knows neither its name nor its arguments."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, step):
        return self.rate / (1.0 + keras.ops.cast(step, "float32"))


class Scaled(keras.optimizers.AdamW):
    """Has an argument that its configuration does not."""

    def __init__(self, learning_rate, scale=1.0):
        super().__init__(learning_rate, weight_decay=0.5)
        self.scale = scale

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, self.scale * learning_rate)


def check_what_an_optimizer_was_told_beside_its_configuration_holds():
    def scaled():
        optimizer = Scaled(lambda: 0.01, scale=3.0)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    def several():
        of_biases, others = keras.optimizers.SGD(DecayingRate(0.1)), scaled()
        return keras.optimizers.MultiOptimizer(
            lambda variable: of_biases if "bias" in variable.path else others
        )

    _require_weights_of_one_process(scaled)
    _require_weights_of_one_process(several)


def check_sparse_gradients_equal_one_process():
    def embedding():
        keras.utils.set_random_seed(1)
        return keras.Sequential(
            [
                keras.layers.Input((5,), dtype="int32"),
                keras.layers.Embedding(50, 8),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(4),
            ]
        )

    words = np.random.default_rng(3).integers(0, 50, (70, 5)).astype(np.int32)
    arrays = (words, images(70)[1])
    for sparse_as_dense in (False, True):
        balancer = hvd.Balancer(B, scripted(some_plans(B)))
        net = embedding()
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.5, momentum=0.9),
            balancer=balancer,
            sparse_as_dense=sparse_as_dense,
        )
        compile_model(net, optimizer)
        fit(net, balancer, balancer.dataset(arrays, shuffle_seed=SEED))
        reference = keras.optimizers.SGD(0.5, momentum=0.9)
        expected, _ = one_process_run(embedding(), arrays, B, reference)
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)


class WithoutCall(keras.Model):
    """Nobody but its `train_step` can build it."""

    def __init__(self):
        super().__init__()
        self.net = _unbuilt_layers()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self.net(x))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = _unbuilt_layers()

    def call(self, x):
        return self.net(x)


def _unbuilt_layers():
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(4)])


def _unbuilt(kind, seed=1):
    keras.utils.set_random_seed(seed)
    return kind()


def check_models_that_their_first_batch_would_build():
    """Once `fit` ended with Keras's "Unknown variable", and asked for a new optimizer."""
    arrays = images(70)
    for kind in (_unbuilt_layers, Subclassed):
        expected, _ = one_process_run(_unbuilt(kind), arrays, B)
        with shared_folder() as folder:
            for epochs in (1, 3):  # The second goes on from what the first has saved.
                balancer = hvd.Balancer(B, scripted(some_plans(B)))
                net = _unbuilt(kind, seed=1 + hvd.rank())
                compile_model(net, sgd(balancer))
                state = hvd.callbacks.TrainingStateCallback(folder, balancer)
                dataset = balancer.dataset(arrays, shuffle_seed=SEED)
                fit(net, balancer, dataset, epochs=epochs, callbacks=[state])
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)


def check_a_model_that_only_its_first_step_can_build_is_broadcast_behind_it():
    balancer = hvd.Balancer(B, scripted(some_plans(B)))
    net = _unbuilt(WithoutCall, seed=1 + hvd.rank())
    net.compile(sgd(balancer), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    net.fit(
        balancer.dataset(images(70), shuffle_seed=SEED),
        epochs=2,
        verbose=0,
        shuffle=False,
        callbacks=[
            hvd.callbacks.DynamicBatchSizeCallback(balancer),
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        ],
    )
    weights = weights_of_all_ranks(net)
    np.testing.assert_array_equal(weights, np.broadcast_to(weights[0], weights.shape))


def check_ranks_with_models_of_other_layers_are_an_error():
    # Named: the layers of later checks, which Keras counts, must have one name on all ranks.
    layers = [keras.layers.Dense(4, name=f"layer_{i}") for i in range(1 + hvd.rank())]
    net = keras.Sequential([keras.layers.Input((4,)), *layers])
    compile_model(net, sgd(None))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(net)
    with nullcontext() if hvd.size() == 1 else pytest.raises(ValueError, match="same model on ev"):
        callback.on_train_begin()


def check_optimizer_without_a_balancer_averages_as_horovod_does():
    x, y = images(48)
    net = model(seed=1 + hvd.rank())
    compile_model(net, sgd(None))
    mine = slice(hvd.rank(), None, hvd.size())
    local = 48 // hvd.size()
    net.fit(
        x[mine],
        y[mine],
        batch_size=local,
        epochs=3,
        verbose=0,
        shuffle=False,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    whole = model()
    compile_model(whole, keras.optimizers.SGD(0.05, momentum=0.9))
    for _ in range(3):
        whole.train_on_batch(x, y)
    np.testing.assert_allclose(flat(net), flat(whole), atol=1e-5)


def check_mixed_precision_skips_the_same_steps_on_all_ranks():
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        balancer = hvd.Balancer(B, hvd.strategies.static([1] * hvd.size()))
        x, y = images(64)
        x[:, 0, 0, 0] = 1.0
        x[5] = 6e4  # One sample overflows, on the one rank that has it.
        net = model()
        compile_model(net, sgd(balancer))
        fit(net, balancer, balancer.dataset((x, y), shuffle_seed=SEED))
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    weights = weights_of_all_ranks(net)
    np.testing.assert_array_equal(weights, np.broadcast_to(weights[0], weights.shape))
    assert np.isfinite(weights).all()
    assert isinstance(net.optimizer, keras.optimizers.LossScaleOptimizer)


def check_loss_scaling_the_wrong_way_round_is_an_error():
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, keras.optimizers.LossScaleOptimizer(sgd(balancer)))
    with pytest.raises(ValueError, match="wrap it the other way round"):
        net.fit(*images(B), batch_size=B, verbose=0)


def check_a_step_under_a_condition_is_an_error_whatever_its_name():
    optimizer = sgd(None)
    weight = keras.Variable(tf.zeros(2))
    optimizer.build([weight])

    @tf.function
    def second_step(gradient):
        optimizer.apply([gradient], [weight])

    second_step(tf.ones(2))
    assert_equal_on_all_ranks(weight.numpy())

    @tf.function
    def step(gradient):
        if tf.reduce_sum(gradient) > 0:
            optimizer.apply([gradient], [weight])

    with pytest.raises(ValueError, match="under a condition that can differ between ranks"):
        step(tf.ones(2))


def check_a_collective_takes_its_thread_along():
    """Once each balancer left a thread running until the process ended."""
    before = set(threading.enumerate())
    collective = connect()
    collective.start(lambda ranks: ranks.allgather(np.zeros(1))).result(10)
    threads = set(threading.enumerate()) - before
    assert len(threads) == int(hvd.size() > 1)
    del collective
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
