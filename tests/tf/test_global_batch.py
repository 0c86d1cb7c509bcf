"""What a step knows of its samples, read off its graph; means by hand in one process."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.keras.global_batch import global_batch
from hvd_dbs.keras.global_losses import global_losses
from hvd_dbs.tensorflow.dependence import depends_on_samples
from hvd_dbs.tensorflow.global_batch import GlobalBatch, current_global_batch, within
from hvd_dbs.tensorflow.sparse_rows import reduce_rows

SCALE = tf.Variable(2.0)
BEFORE = tf.range(3)


@pytest.fixture(autouse=True, scope="module")
def _horovod():
    hvd.init()


def _positions(x):
    return tf.range(tf.shape(x)[1])


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (lambda x: x, True),
        (lambda x: tf.reduce_sum(2.0 * x), True),
        (_positions, False),
        (tf.shape, False),
        (lambda x: BEFORE + 1, False),
        (lambda x: SCALE * SCALE, False),
        (lambda x: tf.cast(_positions(x), tf.float32) * SCALE, False),
        (lambda x: tf.concat([_positions(x), tf.cast(x[0], tf.int32)], 0), True),
        (lambda x: tf.random.uniform([3]), True),  # Each rank would draw its own.
    ],
)
def test_what_depends_on_samples(of, expected):
    found = []

    @tf.function
    def step(x):
        found.append(depends_on_samples(of(x)))

    step(tf.ones([2, 3]))
    assert found == [expected]
    assert depends_on_samples(tf.ones([2])) is None  # No graph to read it off.


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (_positions, False),
        (lambda x: tf.range(tf.cast(tf.shape(x), tf.int64)[-1]), False),
        (lambda x: tf.range(tf.unstack(tf.shape(x))[1]), False),
        (lambda x: tf.zeros(tf.shape(x)[1:]), False),
        (lambda x: tf.range(tf.gather(tf.shape(x), 1) + tf.rank(x)), False),
        (lambda x: tf.range(tf.shape(x)[0]), True),
        (lambda x: tf.range(tf.unstack(tf.shape(x))[0]), True),
        (lambda x: tf.zeros(tf.shape(x)[:1]), True),
        (tf.zeros_like, True),
        (lambda x: tf.tile(_positions(x)[None], [tf.shape(x)[0], 1]), True),
        (lambda x: tf.broadcast_to(_positions(x), tf.shape(x)), True),
    ],
)
def test_what_depends_on_the_number_of_samples(of, expected):
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def step(x):
        found.append(depends_on_samples(of(x), or_on_their_number=True))
        found.append(depends_on_samples(of(x)))

    step(tf.ones([2, 3]))
    assert found == [expected, False]


def test_a_dependence_that_is_known_does_not_count():
    found = []

    @tf.function
    def step(x):
        known = tf.reduce_mean(x)
        found.append(depends_on_samples(0.5 * known, [known]))
        found.append(depends_on_samples(0.5 * known + x[0, 0], [known]))

    step(tf.ones([2, 3]))
    assert found == [False, True]


def test_rows_of_no_sample_are_added_up_and_others_stand_one_after_the_other():
    """A job of two ranks whose other rank has the same gradients."""

    def of_two_ranks(gradients):
        def both(gradient):
            if isinstance(gradient, tf.IndexedSlices):
                values, rows = gradient.values, gradient.indices
                return tf.IndexedSlices(
                    tf.concat([values, values], 0), tf.concat([rows, rows], 0), gradient.dense_shape
                )
            return 2 * gradient

        return [both(gradient) for gradient in gradients]

    table = tf.Variable(tf.random.uniform([9, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def step(x):
        with tf.GradientTape() as tape:
            places = tf.range(5, 5 + tf.shape(x)[1])
            loss = tf.reduce_sum(tf.gather(table, x) + tf.gather(table, places))
        gradient = tape.gradient(loss, table)
        (reduced,) = reduce_rows([gradient], 2, of_two_ranks)
        return reduced.indices, reduced.values

    x = np.array([[1, 1, 3], [0, 1, 2]], np.int32)
    rows, values = step(x)
    counts = np.bincount(rows.numpy(), minlength=9)
    assert counts.tolist() == [2, 6, 2, 2, 0, 1, 1, 1, 0]  # Tokens twice, positions once.
    # Each position's row: two samples of two ranks.
    assert set(values.numpy()[rows.numpy() >= 5].ravel().tolist()) == {4.0}


def test_means_by_hand_are_plain_outside_of_a_step():
    values, mask = np.array([[1.0, 5.0], [3.0, np.nan]]), np.array([[1, 0], [1, 0]])
    assert current_global_batch() is None
    assert float(hvd.global_mean(values, mask)) == 2.0
    assert float(hvd.global_mean(values[:, :1])) == 2.0
    assert float(hvd.global_mean(values, np.zeros((2, 2)))) == 0.0
    assert float(hvd.global_sum(values[:, :1])) == 4.0
    with global_batch():  # One rank is the whole global batch.
        assert current_global_batch() is not None
        assert float(hvd.global_mean(values, mask)) == 2.0
        assert float(hvd.global_sum(values[:, :1])) == 4.0
    assert current_global_batch() is None


def test_a_batch_within_another_one_is_that_one():
    outer = GlobalBatch(1.0, 3.0)  # As if this rank had a third of the samples.
    labels, weights = tf.constant([[1.0], [2.0]]), tf.constant([0.0, 2.0])
    loss_of = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    assert float(loss_of(labels, tf.zeros([2, 1]), weights)) == 4.0
    with global_losses(), within(outer), global_batch() as inner, global_losses():
        assert inner is outer
        assert float(loss_of(labels, tf.zeros([2, 1]), weights)) == 3 * 4.0
        with within(GlobalBatch(1.0, 2.0)):
            assert float(loss_of(labels, tf.zeros([2, 1]), weights)) == 2 * 4.0
    assert float(loss_of(labels, tf.zeros([2, 1]), weights)) == 4.0


def test_a_model_that_is_compiled_anew_trains_as_any_other():
    images, labels = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    balancer = hvd.Balancer(4)
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(), balancer=balancer), loss="mse")
    follow = hvd.callbacks.DynamicBatchSizeCallback(balancer)
    model.fit(balancer.dataset((images, labels)), verbose=0, callbacks=[follow])
    model.compile(keras.optimizers.SGD(), loss="mse")
    before = model.evaluate(images, labels, verbose=0)
    model.fit(images, labels, verbose=0)
    assert model.evaluate(images, labels, verbose=0) < before
