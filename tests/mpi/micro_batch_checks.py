"""Steps that are computed in micro-batches, each against one process. On 2 and 3 ranks.

Numbers of micro-batches differ between ranks and change with the plan, from 1 to 14 of one sample.
"""

from __future__ import annotations

from functools import partial

import keras

import hvd_dbs.keras as hvd
from tests.mpi.exactness import exact
from tests.mpi.exactness_checks import accuracy, per_token
from tests.mpi.exactness_models import (
    adding,
    by_hand,
    cross_entropy,
    cut_to_longest,
    dense,
    embeddings,
    masked,
    of_any_length,
    one_table,
    points,
    points_that_overflow,
    relative,
    text,
    text_with_ignored,
    text_with_weights,
    transformer,
    two_outputs,
    two_texts,
    unmasked,
    weighted_points,
)


def whole():
    return {"micro_batch_size": 2}


def with_a_rest():
    return {"micro_batch_size": 3, "allow_partial": True}


def by_rank():
    """The last rank has the larger ones."""
    return {"micro_batch_size": [*[1] * (hvd.size() - 1), 4]}


optimizers = keras.optimizers

check_plain_mean = exact(dense, points, bounds=whole, loss=cross_entropy(), **accuracy)
check_with_a_rest = exact(dense, points, bounds=with_a_rest, loss=cross_entropy(), **accuracy)
check_by_rank = exact(dense, points, bounds=by_rank, loss=cross_entropy(), **accuracy)
check_more_than_a_local_batch = exact(
    dense,
    points,
    bounds=lambda: {"micro_batch_size": 64, "allow_partial": True},
    loss=cross_entropy(),
)
check_sum = exact(
    dense,
    points,
    partial(optimizers.Adam, 0.01, global_clipnorm=1.0),
    bounds=with_a_rest,
    loss=cross_entropy(reduction="sum"),
)
check_sample_weights = exact(
    dense,
    weighted_points,
    bounds=with_a_rest,
    loss=cross_entropy(reduction="mean_with_sample_weight"),
    weighted_metrics=["accuracy"],
)
check_class_weights = exact(
    dense,
    points,
    bounds=whole,
    loss=cross_entropy(),
    fit_options={"class_weight": {0: 1.0, 1: 5.0, 2: 0.2, 3: 1.0}},
)
check_masked_transformer = exact(transformer, text, bounds=with_a_rest, **per_token)
check_token_weights_and_mask = exact(masked, text_with_weights, bounds=with_a_rest, **per_token)
check_two_outputs_with_different_masks = exact(
    two_outputs,
    two_texts,
    bounds=whole,
    loss=[cross_entropy(), "mse"],
    loss_weights=[1.0, 0.5],
)
check_added_losses = exact(adding, points, bounds=with_a_rest, loss=cross_entropy())
check_loss_by_hand = exact(unmasked, text_with_ignored, bounds=by_rank, loss=by_hand)
check_several_steps_in_a_call = exact(
    masked, text, bounds=with_a_rest, steps_per_execution=2, **per_token
)
check_embeddings = exact(embeddings, text, bounds=with_a_rest, **per_token)
check_relative_positions = exact(relative, text, bounds=whole, **per_token)
check_tokens_and_positions_in_one_table = exact(one_table, text, bounds=with_a_rest, **per_token)
check_batches_cut_to_their_longest_sequence = exact(
    of_any_length, text, bounds=with_a_rest, transform=cut_to_longest, **per_token
)
check_accumulated = exact(
    embeddings,
    text,
    partial(optimizers.Adam, 0.01, gradient_accumulation_steps=2),
    bounds=with_a_rest,
    **per_token,
)
check_overflow_on_one_rank = exact(
    dense,
    points_that_overflow,
    bounds=with_a_rest,
    floatx="float32",
    policy="mixed_float16",
    tolerance=2e-3,
    loss=cross_entropy(),
)
check_run_eagerly = exact(masked, text, bounds=with_a_rest, run_eagerly=True, **per_token)
check_xla = exact(
    masked, text, bounds=whole, floatx="float32", tolerance=1e-5, jit_compile=True, **per_token
)
