"""Steps that are computed in micro-batches, each against one process. On 2 and 3 ranks.

Numbers of micro-batches differ between ranks and change with the plan, from 1 to 14 of one sample.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow as hvd_tensorflow
from tests.mpi.exactness import exact
from tests.mpi.exactness_checks import accuracy, per_token
from tests.mpi.exactness_data import (
    cut_to_longest,
    points,
    points_that_overflow,
    text,
    text_of_classes,
    text_with_ignored,
    text_with_weights,
    two_texts,
    weighted_points,
)
from tests.mpi.exactness_layers import Seeing
from tests.mpi.exactness_models import (
    adding,
    bag,
    by_hand,
    cross_entropy,
    dense,
    embeddings,
    masked,
    of_any_length,
    one_table,
    relative,
    transformer,
    two_outputs,
    unmasked,
)
from tests.mpi.problems import (
    SEED,
    fit,
    flat,
    images,
    model,
    one_process_run,
    scripted,
    sgd,
    some_plans,
)
from tests.mpi.together import captured

B = 16


def whole():
    return {"micro_batch_size": 2}


def with_a_rest():
    return {"micro_batch_size": 3, "allow_partial": True}


def by_rank():
    """The last rank has the larger ones."""
    return {"micro_batch_size": [*[1] * (hvd.size() - 1), 4]}


optimizers = keras.optimizers

check_in_parts_plain_mean = exact(dense, points, bounds=whole, loss=cross_entropy(), **accuracy)
check_in_parts_with_a_rest = exact(
    dense, points, bounds=with_a_rest, loss=cross_entropy(), **accuracy
)
check_in_parts_by_rank = exact(dense, points, bounds=by_rank, loss=cross_entropy(), **accuracy)
check_in_parts_more_than_a_local_batch = exact(
    dense,
    points,
    bounds=lambda: {"micro_batch_size": 64, "allow_partial": True},
    loss=cross_entropy(),
)
check_in_parts_sum = exact(
    dense,
    points,
    partial(optimizers.Adam, 0.01, global_clipnorm=1.0),
    bounds=with_a_rest,
    loss=cross_entropy(reduction="sum"),
)
check_in_parts_sample_weights = exact(
    dense,
    weighted_points,
    bounds=with_a_rest,
    loss=cross_entropy(reduction="mean_with_sample_weight"),
    weighted_metrics=["accuracy"],
)
check_in_parts_class_weights = exact(
    dense,
    points,
    bounds=whole,
    loss=cross_entropy(),
    fit_options={"class_weight": {0: 1.0, 1: 5.0, 2: 0.2, 3: 1.0}},
)
check_in_parts_masked_transformer = exact(transformer, text, bounds=with_a_rest, **per_token)
check_in_parts_token_weights_and_mask = exact(
    masked, text_with_weights, bounds=with_a_rest, **per_token
)
check_in_parts_two_outputs_with_different_masks = exact(
    two_outputs,
    two_texts,
    bounds=whole,
    loss=[cross_entropy(), "mse"],
    loss_weights=[1.0, 0.5],
)
check_in_parts_added_losses = exact(adding, points, bounds=with_a_rest, loss=cross_entropy())
check_in_parts_loss_by_hand = exact(unmasked, text_with_ignored, bounds=by_rank, loss=by_hand)
check_in_parts_several_steps_in_a_call = exact(
    masked, text, bounds=with_a_rest, steps_per_execution=2, **per_token
)
check_in_parts_embeddings = exact(embeddings, text, bounds=with_a_rest, **per_token)
check_in_parts_bags_of_embeddings = exact(
    bag, text_of_classes, bounds=with_a_rest, loss=cross_entropy()
)
check_in_parts_relative_positions = exact(relative, text, bounds=whole, **per_token)
check_in_parts_tokens_and_positions_in_one_table = exact(
    one_table, text, bounds=with_a_rest, **per_token
)
check_in_parts_batches_cut_to_their_longest_sequence = exact(
    of_any_length, text, bounds=with_a_rest, transform=cut_to_longest, **per_token
)
check_in_parts_accumulated = exact(
    embeddings,
    text,
    partial(optimizers.Adam, 0.01, gradient_accumulation_steps=2),
    bounds=with_a_rest,
    **per_token,
)
check_in_parts_overflow_on_one_rank = exact(
    dense,
    points_that_overflow,
    bounds=with_a_rest,
    floatx="float32",
    policy="mixed_float16",
    tolerance=2e-3,
    loss=cross_entropy(),
)
check_in_parts_run_eagerly = exact(masked, text, bounds=with_a_rest, run_eagerly=True, **per_token)
check_in_parts_xla = exact(
    masked, text, bounds=whole, floatx="float32", tolerance=1e-5, jit_compile=True, **per_token
)


def _train(net, data, epochs=1, dataset=lambda one: one, **compile_options):
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2, **with_a_rest())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), balancer=balancer)
    net.compile(optimizer, loss=cross_entropy(), **compile_options)
    made = dataset(balancer.dataset(data, shuffle_seed=SEED))
    return fit(net, balancer, made, epochs)


def check_a_pass_has_one_micro_batch_and_is_traced_once():
    seeing = Seeing()
    net = keras.Sequential([layers.Input((5,)), seeing, layers.Dense(4)])
    seen = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(seeing.num_traces)

    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2, **with_a_rest())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), balancer=balancer)
    net.compile(optimizer, loss=cross_entropy())
    fit(net, balancer, balancer.dataset(points(), shuffle_seed=SEED), 2, [Note()])
    assert int(seeing.most.numpy()) == 3
    assert seen[0] == seen[-1]


def check_a_loop_of_ones_own_equals_one_process():
    """As docs/micro_batches.md shows it."""
    arrays = images(70)
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2, **with_a_rest())
    net = model(seed=1 + hvd.rank())
    hvd_tensorflow.broadcast_variables(net.variables, root_rank=0)
    optimizer, loss = sgd(balancer), keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss_of(data):
        x, y = data
        return loss(y, net(x, training=True)) + sum(net.losses)

    @tf.function(reduce_retracing=True)
    def train_step(data):
        variables = net.trainable_variables
        value, gradients = hvd.accumulate_gradients(loss_of, data, variables, balancer)
        optimizer.apply(gradients, variables)
        return value

    for epoch in balancer.epochs(balancer.dataset(arrays, shuffle_seed=SEED), 3):
        for data in epoch:
            train_step(data)
    expected, _ = one_process_run(model(), arrays, B)
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)


def check_what_cannot_be_cut_is_an_error_on_all_ranks():
    class OwnStep(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    class OwnNumber(keras.Model):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "largest": ops.max(x)}

    def net(kind, *hidden):
        x = layers.Input((5,))
        return kind(x, keras.Sequential([*hidden, layers.Dense(4)])(x))

    with pytest.raises(ValueError, match="train_step of its own, which cannot be cut"):
        _train(net(OwnStep), points())
    with pytest.raises(ValueError, match="normalizes by the global batch"):
        _train(net(keras.Model, hvd.layers.SyncBatchNormalization()), points())
    with pytest.raises(ValueError, match="changes its weights in each forward pass"):
        _train(net(keras.Model, layers.SpectralNormalization(layers.Dense(5))), points())
    with pytest.raises(ValueError, match="returns largest, no metric of the model"):
        _train(net(OwnNumber), points())
    with pytest.raises(TypeError, match="have a SparseTensor"):
        _train(
            net(keras.Model),
            points(),
            dataset=lambda one: one.map(lambda x, y: (tf.sparse.from_dense(x), y)),
        )
    for given, words in [
        ({"micro_batch_size": 0}, "micro_batch_size=0 must be"),
        ({"micro_batch_size": [2] * (hvd.size() + 1)}, "one number for all ranks or one for each"),
        ({"micro_batch_size": 5}, "not a multiple of 5, .*micro_batch_size"),
        ({"allow_partial": True}, "was given without micro_batch_size"),
    ]:
        with pytest.raises(ValueError, match=words):
            hvd.Balancer(B, **given)
    with pytest.raises(TypeError, match="micro_batch=, which it does not know"):
        hvd.Balancer(B, micro_batch=3)


def check_batch_normalization_is_warned_of():
    net = keras.Sequential([layers.Input((5,)), layers.BatchNormalization(), layers.Dense(4)])
    with captured("hvd_dbs.keras.micro_batched_training") as records:
        _train(net, points())
    lines = [record.getMessage() for record in records if record.levelno == logging.WARNING]
    assert len(lines) == int(hvd.rank() == 0)
    assert all("by each micro-batch, here of 3 samples" in line for line in lines)


def check_counters_of_random_layers_are_the_same_on_all_ranks():
    dropout = layers.Dropout(0.5, seed=3)
    net = keras.Sequential([layers.Input((5,)), dropout, layers.Dense(4)])
    _train(net, points())
    states = hvd.allgather(tf.cast(dropout.seed_generator.state.value, tf.int64)[None]).numpy()
    assert len(set(states[:, 1].tolist())) == 1
    assert states[0, 1] == 5, "one step, one number"


def check_xla_compiles_micro_batches_and_leaves_exchanges_alone():
    seeing = Seeing()
    net = keras.Sequential([layers.Input((5,)), seeing, layers.Dense(4)])
    with captured("hvd_dbs.keras.xla") as records:
        _train(net, points(), jit_compile=True)
    assert not net.jit_compile
    assert not [record for record in records if record.levelno == logging.WARNING]

    def of_text(x):
        return x + tf.cast(tf.strings.length(tf.strings.as_string(x)), x.dtype)

    layer = layers.Lambda(of_text, output_shape=(5,))
    for jit_compile in (False, True):
        net = keras.Sequential([layers.Input((5,)), layers.Dense(5), layer, layers.Dense(4)])
        with contextlib.ExitStack() as stack:
            if jit_compile:  # It has no texts.
                stack.enter_context(
                    pytest.raises(tf.errors.OpError, match=r"StringLength|AsString")
                )
            _train(net, points(), jit_compile=jit_compile)
