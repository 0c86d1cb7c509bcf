"""What is not exact is an error or one warning, on all ranks. On 2 and 3 ranks."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import hvd_dbs.keras as hvd
from hvd_dbs.keras.initial_epoch import require_same_epoch
from tests.mpi.exactness_data import points, text
from tests.mpi.exactness_models import (
    cross_entropy,
    dense,
    masked,
    positions,
)
from tests.mpi.problems import SEED, fit, hvd_collective, scripted, some_plans
from tests.mpi.together import captured, meet, shared_folder

B = 16


def _train(net, data, loss, epochs=1, callbacks=(), strategy=None, bounds=None, **options):
    balancer = hvd.Balancer(B, strategy or scripted(some_plans(B)), **(bounds or {}))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), balancer=balancer)
    net.compile(optimizer, loss=loss, **options)
    return fit(net, balancer, balancer.dataset(data, shuffle_seed=SEED), epochs, callbacks)


def _warnings(net, data, loss, **options):
    """What `fit` warns of on rank 0; nothing on any other rank."""
    with captured("hvd_dbs.keras.global_batch") as records:
        _train(net, data, loss, **options)
    lines = [record.getMessage() for record in records if record.levelno == logging.WARNING]
    assert hvd.rank() == 0 or not lines
    counts = hvd_collective().broadcast(np.array([len(lines)]))
    return lines if hvd.rank() == 0 else [None] * int(counts[0])


def _warned_of(lines, words):
    return len(lines) == 1 and (lines[0] is None or words in lines[0])


def check_a_loss_that_returns_one_number_is_warned_of():
    def squares(y, p):
        return ops.mean(ops.square(p - ops.one_hot(y, 4)))

    def exact_squares(y, p):
        return 0.5 * hvd.global_mean(ops.square(p - ops.one_hot(y, 4)))

    lines = _warnings(dense(), points(), squares)
    assert _warned_of(lines, "one number for the whole batch")
    assert _warned_of(lines, "return one value for each sample")
    assert _warned_of(_warnings(dense(), points(), squares, run_eagerly=True), "one number")
    assert not _warnings(dense(), points(), exact_squares)
    assert not _warnings(masked(), text(), cross_entropy())


def check_a_loss_of_add_loss_is_warned_of():
    class Adding(layers.Layer):
        def call(self, x):
            self.add_loss(self.of(ops.square(x)))
            return x

    def net(of):
        adding = Adding()
        adding.of = of
        hidden = layers.Dense(
            4,
            activity_regularizer=keras.regularizers.L2(0.1),
            kernel_regularizer=keras.regularizers.L1(0.1),
        )
        return keras.Sequential([layers.Input((5,)), hidden, adding])

    for eager in (False, True):
        lines = _warnings(net(ops.sum), points(), cross_entropy(), run_eagerly=eager)
        assert _warned_of(lines, "a loss of add_loss")
        plain = keras.Sequential(net(ops.sum).layers[:-1])
        for exact in (plain, net(hvd.global_sum)):
            assert not _warnings(exact, points(), cross_entropy(), run_eagerly=eager)


def check_a_loss_that_train_step_computes_itself_is_warned_of():
    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - tf.one_hot(y, 4)))
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    x = layers.Input((5,))
    lines = _warnings(Own(x, layers.Dense(4)(x)), points(), None)
    assert _warned_of(lines, "a loss that train_step computes itself")
    assert not any("one value for each sample" in line for line in filter(None, lines))


def check_a_loss_that_compute_loss_adds_is_warned_of():
    class Adding(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = super().compute_loss(x, y, y_pred, sample_weight, training)
            return loss + self.of(ops.square(y_pred)) + ops.sum(ops.abs(self.weights[0]))

    def net(of):
        x = layers.Input((5,))
        model = Adding(x, layers.Dense(4, kernel_regularizer="l2")(x))
        model.of = of
        return model

    for bounds in ({}, {"micro_batch_size": 1}):
        lines = _warnings(net(ops.sum), points(), cross_entropy(), bounds=bounds)
        assert _warned_of(lines, "a loss that compute_loss computes itself")
        assert not _warnings(net(hvd.global_sum), points(), cross_entropy(), bounds=bounds)


class Clipping(keras.Sequential):
    """Clips its rank's gradients, or has its optimizer clip their mean."""

    def __init__(self, clip):
        super().__init__([layers.Input([3]), layers.Dense(1)])
        self.clip = clip

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            # The gradient of a clipped output is none that is clipped.
            loss = self.compute_loss(x, y, tf.clip_by_value(self(x, training=True), -9.0, 9.0))
        weights = self.trainable_variables
        self.optimizer.apply(self.clip(tape.gradient(loss, weights)), weights)
        return {"loss": loss}


def check_gradients_that_a_step_clips_are_warned_of():
    x = np.random.default_rng(0).normal(size=(2 * B, 3)).astype(np.float32)

    def lines(clip):
        with captured("hvd_dbs.tensorflow.gradient_reducer") as records:
            _train(Clipping(clip), (x, x[:, :1]), "mse")
        return [record.getMessage() for record in records]

    for name, clip in (
        ("clip_by_global_norm", lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0]),
        ("clip_by_norm", lambda gradients: [tf.clip_by_norm(one, 0.1) for one in gradients]),
        ("clip_by_value", lambda gradients: [ops.clip(one, -0.1, 0.1) for one in gradients]),
    ):
        found = lines(clip)
        assert [f"({name})" in line for line in found] == [True] * (hvd.rank() == 0)
    assert not lines(lambda gradients: gradients)


def check_the_circle_loss_is_warned_of():
    lines = _warnings(dense(), points(), keras.losses.Circle())
    assert _warned_of(lines, "compares the samples")


def check_values_that_belong_to_no_sample_are_an_error():
    class OneMore(keras.losses.Loss):
        def call(self, y, p):
            each = keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)
            return tf.concat([each, each[:1]], 0)

    # Of one rank alone: the other has a sample a step, of which any number is a multiple.
    strategy = hvd.strategies.static([B - 1] + [1] * (hvd.size() - 1))
    with pytest.raises(ValueError, match="values that belong to no sample") as caught:
        _train(dense(), points(), OneMore(), strategy=strategy)
    assert hvd.size() == 1 or str(caught.value).startswith("rank 0: ")


def check_sparse_gradients_that_run_eagerly_are_warned_of():
    with pytest.warns(UserWarning, match="has a sparse gradient"):
        _train(positions(), text(), cross_entropy(), run_eagerly=True)


def check_ranks_that_begin_in_other_epochs_are_an_error():
    """Once the job hung: the argument of `fit` is the same on all ranks."""
    with shared_folder() as folder:

        def callbacks():
            if hvd.rank() > 0:
                return []
            return [keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)]

        class Interrupt(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.stop_training = epoch == 1

        _train(dense(), points(), cross_entropy(), 4, [*callbacks(), Interrupt()])
        meet()
        if hvd.size() > 1:
            with pytest.raises(ValueError, match="Training begins in epochs"):
                _train(dense(), points(), cross_entropy(), 4, callbacks())


def check_an_epoch_that_differs_names_the_ranks():
    require_same_epoch([3, 3])
    with pytest.raises(ValueError, match=r"epochs \[2, 0\] on ranks 0 to 1"):
        require_same_epoch([2, 0])


def check_an_evaluation_that_nobody_adds_up_is_warned_of():
    net = dense()
    net.compile("sgd", cross_entropy())
    for options, is_averaged, is_warned in (
        ({}, False, True),
        ({"training": False}, False, True),
        ({"training": False}, True, False),
    ):
        balancer = hvd.Balancer(B, "even")
        average = hvd.callbacks.MetricAverageCallback(balancer=balancer)
        dataset = balancer.dataset(points(), **options)
        with captured("hvd_dbs.job.datasets") as records:
            net.evaluate(dataset, verbose=0, callbacks=[average] * is_averaged)
            sum(1 for _ in dataset)  # A loop of one's own knows what it reads.
        lines = [record.getMessage() for record in records]
        assert len(lines) == int(is_warned and hvd.rank() == 0 and hvd.size() > 1)
        assert all("model.evaluate reads each rank's part" in line for line in lines)
        meet()


def check_arrays_of_objects_are_an_error():
    balancer = hvd.Balancer(B, "even")
    lists = np.array([[1], [2, 3]] * B, dtype=object)
    with pytest.raises(TypeError, match=r"array of Python objects.*RandomAccess"):
        balancer.dataset((lists, np.arange(2 * B)))
    assert balancer.dataset(np.array(["a", "b"] * B, dtype=object)).element_spec.dtype == tf.string
