"""Losses, layers and optimizers that people use, each against one process. On 2 and 3 ranks.

A case is a line: `check_name = exact(model, data, optimizer, loss=...)`.
"""

from __future__ import annotations

from functools import partial

import keras

from tests.mpi.exactness import exact
from tests.mpi.exactness_data import (
    as_sparse,
    cut_to_longest,
    latent_and_real,
    points,
    points_that_overflow,
    rare_points,
    text,
    text_of_classes,
    text_with_ignored,
    text_with_weights,
    two_texts,
    weighted_points,
)
from tests.mpi.exactness_models import (
    Gan,
    adding,
    bag,
    by_hand,
    compile_gan,
    cross_entropy,
    dense,
    embeddings,
    masked,
    normalized,
    of_any_length,
    of_every_sample,
    of_sparse_points,
    one_table,
    own_step,
    positions,
    recurrent,
    relative,
    seeded,
    several_embeddings,
    spectral,
    tied,
    transformer,
    two_outputs,
    unmasked,
)

optimizers = keras.optimizers
accuracy = {"metrics": ["accuracy"]}
per_token = {"loss": cross_entropy()}

check_plain_mean = exact(dense, points, loss=cross_entropy(), **accuracy)
check_masked_transformer_adam = exact(transformer, text, **per_token)
check_masked_transformer_adamw = exact(
    transformer, text, partial(optimizers.AdamW, 0.01), **per_token
)
check_masked_recurrent = exact(recurrent, text, **per_token)
check_masked_tokens_in_float32 = exact(masked, text, floatx="float32", tolerance=1e-5, **per_token)
check_masked_tokens_several_steps_in_a_call = exact(
    masked, text, steps_per_execution=2, **per_token
)
check_ignored_class = exact(unmasked, text_with_ignored, loss=cross_entropy(ignore_class=-1))
check_ignored_class_and_mask = exact(masked, text_with_ignored, loss=cross_entropy(ignore_class=-1))
check_token_weights = exact(unmasked, text_with_weights, **per_token)
check_token_weights_and_mask = exact(masked, text_with_weights, **per_token)
check_mean_with_token_weights = exact(
    masked, text_with_weights, loss=cross_entropy(reduction="mean_with_sample_weight")
)
check_sample_weights = exact(
    dense, weighted_points, loss=cross_entropy(), weighted_metrics=["accuracy"]
)
check_mean_with_sample_weights = exact(
    dense, weighted_points, loss=cross_entropy(reduction="mean_with_sample_weight")
)
check_class_weights = exact(
    dense,
    points,
    loss=cross_entropy(),
    fit_options={"class_weight": {0: 1.0, 1: 5.0, 2: 0.2, 3: 1.0}},
)
check_mean_with_class_weights = exact(
    dense,
    points,
    loss=cross_entropy(reduction="mean_with_sample_weight"),
    fit_options={"class_weight": {0: 1.0, 1: 5.0, 2: 0.2, 3: 1.0}},
)
check_sum = exact(
    dense,
    points,
    partial(optimizers.Adam, 0.01, global_clipnorm=1.0),
    loss=cross_entropy(reduction="sum"),
)
check_masked_sum = exact(masked, text, loss=cross_entropy(reduction="sum"))
check_two_outputs_with_different_masks = exact(
    two_outputs, two_texts, loss=[cross_entropy(), "mse"], loss_weights=[1.0, 0.5]
)
check_added_losses = exact(adding, points, loss=cross_entropy())
check_loss_by_hand = exact(unmasked, text_with_ignored, loss=by_hand)
check_own_step = exact(own_step, text, **per_token)
check_relative_positions = exact(relative, text, **per_token)
check_positions_and_types_of_every_sample = exact(of_every_sample, text, **per_token)
check_tokens_and_positions_in_one_table = exact(one_table, text, **per_token)
check_batches_cut_to_their_longest_sequence = exact(
    of_any_length, text, transform=cut_to_longest, **per_token
)
check_positions_accumulated = exact(
    positions, text, partial(optimizers.Adam, 0.01, gradient_accumulation_steps=2), **per_token
)

check_synchronized_batch_normalization = exact(normalized, points, loss=cross_entropy())
check_spectral_normalization = exact(spectral, points, loss=cross_entropy())
check_spectral_normalization_several_steps_in_a_call = exact(
    spectral, points, loss=cross_entropy(), steps_per_execution=2
)
check_generative_adversarial_network = exact(seeded(Gan), latent_and_real, compiled=compile_gan)
check_several_embeddings = exact(several_embeddings, text, **per_token)
check_overflow_on_one_rank = exact(
    dense,
    points_that_overflow,
    floatx="float32",
    policy="mixed_float16",
    tolerance=2e-3,
    loss=cross_entropy(),
)
check_masked_mixed_precision = exact(
    masked, text, floatx="float32", policy="mixed_float16", tolerance=2e-3, **per_token
)

check_positions = exact(positions, text, **per_token)
check_bags_of_embeddings = exact(bag, text_of_classes, loss=cross_entropy())
check_sparse_samples = exact(
    of_sparse_points, rare_points, transform=as_sparse, loss=cross_entropy()
)
check_tied_embeddings = exact(tied, text, **per_token)

# Embeddings of tokens, of positions and tied ones in one model.
check_embeddings_sgd = exact(
    embeddings, text, partial(optimizers.SGD, 0.1, momentum=0.9, nesterov=True), **per_token
)
check_embeddings_adam = exact(
    embeddings, text, partial(optimizers.Adam, 0.01, amsgrad=True), **per_token
)
check_embeddings_adamw = exact(embeddings, text, partial(optimizers.AdamW, 0.01), **per_token)
check_embeddings_nadam = exact(embeddings, text, partial(optimizers.Nadam, 0.01), **per_token)
check_embeddings_rmsprop = exact(
    embeddings, text, partial(optimizers.RMSprop, 0.01, momentum=0.9), **per_token
)
check_embeddings_adagrad = exact(embeddings, text, partial(optimizers.Adagrad, 0.1), **per_token)
check_embeddings_adadelta = exact(embeddings, text, partial(optimizers.Adadelta, 1.0), **per_token)
check_embeddings_adamax = exact(embeddings, text, partial(optimizers.Adamax, 0.01), **per_token)
check_embeddings_ftrl = exact(embeddings, text, partial(optimizers.Ftrl, 0.1), **per_token)
check_embeddings_lion = exact(embeddings, text, partial(optimizers.Lion, 0.01), **per_token)
check_embeddings_lamb = exact(embeddings, text, partial(optimizers.Lamb, 0.01), **per_token)
check_embeddings_adafactor = exact(
    embeddings, text, partial(optimizers.Adafactor, 0.01), **per_token
)
