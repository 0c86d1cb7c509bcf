"""What rank 0 gives to the others, and what each keeps. Run on 2 ranks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow as hvd_tensorflow
from tests.mpi.problems import images, model, sgd, weights_of_all_ranks


def _own_images():
    x, y = images(8 * hvd.size())
    return x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]


def check_local_variables_are_not_broadcast():
    """Not even where each rank has another number of rows, as parts of a large embedding."""
    keras.utils.set_random_seed(1 + hvd.rank())
    net = keras.Sequential(
        [
            keras.layers.Input((2,), dtype="int32"),
            keras.layers.Embedding(5 + hvd.rank(), 3),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    part = net.layers[0].embeddings
    before = part.numpy()
    adam = hvd.PartialDistributedOptimizer(keras.optimizers.Adam(0.1), local_layers=[net.layers[0]])
    net.compile(adam, "mse")
    root = hvd.size() - 1
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root, "", part)
    callback.set_model(net)
    callback.on_train_begin()
    np.testing.assert_array_equal(part.numpy(), before)
    kernels = hvd.allgather(tf.reshape(net.layers[2].kernel, [1, -1])).numpy()
    np.testing.assert_array_equal(kernels, np.broadcast_to(kernels[root], kernels.shape))
    net.train_on_batch(np.zeros((4, 2)), np.ones((4, 2)))


def check_ranks_that_have_built_other_models_before():
    """Once they deadlocked: Keras counts layers, and names held the counts."""
    for _ in range(hvd.rank()):
        keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0)])
        keras.optimizers.SGD(0.1)
    net = model(seed=1 + hvd.rank())
    net.compile(sgd(None), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    net.fit(*_own_images(), verbose=0, callbacks=callbacks)
    _assert_equal_on_all_ranks(net)

    net, optimizer = model(seed=1 + hvd.rank()), keras.optimizers.Adam(0.1)

    @tf.function
    def step(x, is_first):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(net(x) ** 2)
        tape = hvd_tensorflow.DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(value, net.trainable_weights), net.trainable_weights)
        if is_first:  # Two calls in one graph.
            hvd_tensorflow.broadcast_variables(net.variables, root_rank=0)
            hvd_tensorflow.broadcast_variables(optimizer.variables, root_rank=0)

    x, _ = _own_images()
    step(x, True)
    _assert_equal_on_all_ranks(net)
    step(x, False)
    _assert_equal_on_all_ranks(net)
    state = hvd.elastic.KerasState(net, optimizer, epoch=hvd.rank())
    for weight in net.weights:
        weight.assign(weight + hvd.rank())
    state.save()
    state.sync()
    _assert_equal_on_all_ranks(net)
    assert state.epoch == 0


def _assert_equal_on_all_ranks(net):
    weights = weights_of_all_ranks(net)
    np.testing.assert_array_equal(weights, np.broadcast_to(weights[0], weights.shape))


def check_variables_of_all_types_are_broadcast():
    rank = float(hvd.rank())
    for inplace in (False, True):
        variables = [
            tf.Variable(tf.cast([[rank], [rank + 2]], dtype), name=f"of_rank_{hvd.rank()}")
            for dtype in ("float32", "bfloat16", "uint32", "int64", "bool", "complex64", "float16")
        ]
        variables += [tf.Variable(rank), tf.Variable(tf.zeros([0, 3])), keras.Variable([rank])]
        hvd_tensorflow.broadcast_variables(variables, 0, inplace=inplace)
        for variable in variables[:-3]:
            expected = tf.cast([[0.0], [2.0]], variable.dtype)
            np.testing.assert_array_equal(variable.numpy(), expected.numpy())
        assert variables[-3].numpy() == 0 == variables[-1].numpy()[0]


def check_ranks_with_other_variables_are_one_error_on_all_ranks():
    mine = [tf.Variable(tf.zeros([2, 3 + hvd.rank()]), name="kernel"), tf.Variable(1.0)]
    mine += [tf.Variable(1)] * hvd.rank()
    number = r"2 variables on rank 0; 3 variables on rank 1"
    cases = (
        (
            mine,
            0,
            rf"{number}\): number 0 is float32 \(2, 3\) kernel.* on rank 0; float32 \(2, 4\)",
        ),
        (mine[1:], 0, r"number 1 is missing on rank 0; int32 \(\) .* on rank 1"),
        (mine[1:2], hvd.rank(), "root_rank=0 on rank 0; root_rank=1 on rank 1"),
    )
    for variables, root, text in cases:

        def broadcast(variables=variables, root=root):
            hvd_tensorflow.broadcast_variables(variables, root)

        with pytest.raises(ValueError, match=text):
            broadcast()
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            tf.function(broadcast, autograph=False)()


def check_nothing_to_broadcast_and_no_such_rank_are_errors():
    net = keras.Sequential([keras.layers.Dense(2)])  # Its input is not known yet.
    with pytest.raises(ValueError, match="Build the model first"):
        hvd_tensorflow.broadcast_variables(net.variables, root_rank=0)
    with pytest.raises(ValueError, match="Give one from 0 to 1"):
        hvd_tensorflow.broadcast_variables([tf.Variable(1.0)], root_rank=2)
