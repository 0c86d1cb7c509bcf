"""Batch normalization by the statistics of whole global batches. Run on 2 and 3 ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as plain_hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow
from hvd_dbs.keras.layers.sync_batch_normalization import (
    Synchronized,
    synchronize_batch_normalization,
)
from tests.mpi.problems import (
    SEED,
    assert_equal_on_all_ranks,
    compile_model,
    fit,
    hvd_collective,
    images,
    scripted,
    sgd,
    some_plans,
    train_alone,
)
from tests.mpi.together import captured

B = 16
NUM_SAMPLES = 65  # One rank alone has a sample in the fifth step.


def convolutional(kind: Callable[..., keras.Layer], **options: Any) -> keras.Model:
    """A net with two such layers."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        kind(momentum=0.8, **options),
        keras.layers.Flatten(),
        keras.layers.Dense(4),
        kind(momentum=0.8, **options),
    ]
    return keras.Sequential(layers)


def of_tokens(kind: Callable[..., keras.Layer]) -> keras.Model:
    """A net in which masked positions must not count."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Input((6,)),
        keras.layers.Embedding(9, 5, mask_zero=True),
        kind(momentum=0.8),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(4),
    ]
    return keras.Sequential(layers)


def tokens() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Texts of different lengths, padded with 0, and labels."""
    random = np.random.default_rng(0)
    x = random.integers(1, 9, (NUM_SAMPLES, 6))
    x[np.arange(6) >= random.integers(1, 7, NUM_SAMPLES)[:, np.newaxis]] = 0
    return x, random.integers(0, 4, NUM_SAMPLES)


def synchronized(**options: Any) -> keras.Layer:
    return keras.layers.BatchNormalization(synchronized=True, **options)


def train(
    net: keras.Model,
    arrays: Sequence[NDArray[Any]],
    epochs: int = 3,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **options: Any,
) -> None:
    """Trains with plans that change every second step."""
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2)
    compile_model(net, sgd(balancer), **options)
    dataset = balancer.dataset(arrays, shuffle_seed=SEED)
    fit(net, balancer, dataset, epochs, callbacks)


def all_weights(net: keras.Model) -> NDArray[np.float64]:
    """Weights and moving statistics in one vector."""
    return np.concatenate([w.numpy().astype(np.float64).ravel() for w in net.weights])


def distance_to_one_process(
    net: keras.Model, build: Callable[..., keras.Model], arrays: Any, epochs: int = 3
) -> float:
    """What a weight or statistic differs by from plain Keras on whole global batches, at most.

    Only rank 0 computes that, after it was seen that all ranks have the same.
    """
    assert_equal_on_all_ranks(all_weights(net))
    distance = 0.0
    if hvd.rank() == 0:
        expected = build(keras.layers.BatchNormalization)
        train_alone(expected, arrays, B, epochs=epochs)
        distance = np.max(np.abs(all_weights(net) - all_weights(expected)))
    return float(hvd_collective().broadcast(np.array([distance]))[0])


def check_synchronized_layers_equal_one_process():
    arrays = images(NUM_SAMPLES)
    for kind, options, allowed in (
        (hvd.layers.SyncBatchNormalization, {}, (0, 1e-5)),
        (synchronized, {"steps_per_execution": 3}, (0, 1e-5)),
        (keras.layers.BatchNormalization, {}, (0.1, 10)),  # There is something to be seen.
    ):
        net = convolutional(kind)
        with captured("hvd_dbs.keras") as records:
            train(net, arrays, **options)
        assert allowed[0] <= distance_to_one_process(net, convolutional, arrays) <= allowed[1]
        is_plain = kind is keras.layers.BatchNormalization
        assert any("own batch" in one.getMessage() for one in records) == (
            is_plain and hvd.rank() == 0
        )


def check_masked_positions_do_not_count():
    net = of_tokens(hvd.layers.SyncBatchNormalization)
    train(net, tokens())
    assert distance_to_one_process(net, of_tokens, tokens()) <= 1e-5


def check_half_precision_computes_statistics_in_float32():
    x, y = images(NUM_SAMPLES)
    arrays = (500 * x, y)  # The sum of their squares is beyond float16.
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        net = convolutional(hvd.layers.SyncBatchNormalization)
        train(net, arrays, epochs=1)
        distance = distance_to_one_process(net, convolutional, arrays, epochs=1)
    finally:
        keras.config.set_dtype_policy(before)
    assert {w.dtype for w in net.weights} == {"float32"}
    # The moving variance is one of values of 500.
    assert distance <= 1e-3 * np.max(np.abs(all_weights(net)))


def check_gradients_without_a_balancer_are_those_of_one_process():
    """Every rank's samples count as they are, also a layer's in a loop that knows no balancer."""
    random = np.random.default_rng(0)
    sizes = [2 + 3 * rank for rank in range(hvd.size())]
    # A mean far from 0: its square is ten million times the variance.
    whole = (3000 + random.normal(size=(sum(sizes), 5, 3))).astype(np.float32)
    mask = random.random((sum(sizes), 5)) < 0.6
    slopes = random.normal(size=whole.shape).astype(np.float32)
    start = sum(sizes[: hvd.rank()])
    mine = slice(start, start + sizes[hvd.rank()])

    def run(layer, rows, masked, traced):
        x = tf.Variable(whole[rows])

        def step():
            with tf.GradientTape() as tape:
                given = {"mask": tf.constant(mask[rows])} if masked else {}
                loss = tf.reduce_sum(layer(x, training=True, **given) * slopes[rows])
            return tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])

        results = (tf.function(step) if traced else step)()
        return [*map(np.asarray, results), *[v.numpy() for v in layer.non_trainable_variables]]

    for masked in (False, True):
        for traced in (False, True):
            layers = keras.layers.BatchNormalization(), hvd.layers.SyncBatchNormalization()
            of_x, *of_weights, mean, variance = run(layers[0], slice(None), masked, traced)
            got, *got_weights, got_mean, got_variance = run(layers[1], mine, masked, traced)
            np.testing.assert_allclose(got, of_x[mine], atol=2e-3)
            for own, wanted in zip(got_weights, of_weights, strict=True):
                total = plain_hvd.allreduce(tf.constant(own), op=hvd.Sum).numpy()
                np.testing.assert_allclose(total, wanted, atol=2e-2)
            np.testing.assert_allclose(got_mean, mean, rtol=1e-6)
            np.testing.assert_allclose(got_variance, variance, rtol=1e-4)


def check_layers_without_a_balancer_run_side_by_side():
    """Two in parallel branches of a step that is no step of a balancer."""
    keras.utils.set_random_seed(1)
    inputs = keras.layers.Input((3,))
    branches = [hvd.layers.SyncBatchNormalization()(inputs * k) for k in range(1, 7)]
    net = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.add(branches)))
    net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(8, 3)).astype(np.float32)
    net.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, shuffle=False)
    assert_equal_on_all_ranks(all_weights(net))


def check_what_is_saved_is_plain_keras():
    x = images(8)[0]
    ours, theirs = hvd.layers.SyncBatchNormalization, keras.layers.BatchNormalization
    for kind, loaded_kind in ((ours, ours), (synchronized, theirs)):
        net = convolutional(kind)
        net(x, training=True)
        synchronize_batch_normalization(net)  # As `fit` does.
        assert isinstance(net.layers[1], Synchronized)
        with tempfile.TemporaryDirectory() as folder:
            net.save(Path(folder) / "model.keras")
            loaded = keras.saving.load_model(Path(folder) / "model.keras")
            plain = convolutional(theirs)
            plain.set_weights(net.get_weights())
            if kind is synchronized:
                net.save_weights(Path(folder) / "net.weights.h5")
                plain.load_weights(Path(folder) / "net.weights.h5")
        assert type(loaded.layers[1]) is loaded_kind
        assert loaded.layers[1].synchronized and loaded.layers[1].momentum == 0.8
        for other in (loaded, plain):
            np.testing.assert_array_equal(other(x), net(x))
        config = {**net.layers[1].get_config(), "synchronized": True}
        assert keras.layers.BatchNormalization.from_config(config).synchronized
    with pytest.raises(ValueError, match="SyncBatchNormalization was given synchronized=False"):
        ours(synchronized=False)
    assert hvd_dbs.tensorflow.SyncBatchNormalization is ours
