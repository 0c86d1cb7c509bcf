"""Small data of what people train on; see `exactness_checks`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.mpi.exactness import NUM_SAMPLES

VOCABULARY, LENGTH, CLASSES = 20, 6, 4


def rng():
    return np.random.default_rng(5)


def tokens():
    """Padded token sequences of very different lengths, the longest first in each global batch."""
    random = rng()
    x = random.integers(1, VOCABULARY, (NUM_SAMPLES, LENGTH))
    lengths = random.integers(1, LENGTH + 1, NUM_SAMPLES)
    return np.where(np.arange(LENGTH) < lengths[:, None], x, 0).astype(np.int32)


def token_labels():
    return rng().integers(0, CLASSES, (NUM_SAMPLES, LENGTH))


def text():
    return tokens(), token_labels()


def text_with_ignored():
    x = tokens()
    return x, np.where(x == 0, -1, token_labels())


def text_with_weights():
    return tokens(), token_labels(), rng().uniform(0, 2, (NUM_SAMPLES, LENGTH))


def points():
    random = rng()
    return random.normal(size=(NUM_SAMPLES, 5)), random.integers(0, CLASSES, NUM_SAMPLES)


def text_of_classes():
    return tokens(), rng().integers(0, CLASSES, NUM_SAMPLES)


def rare_points():
    x, y = points()
    return np.where(np.abs(x) > 1, x, 0), y


def as_sparse(dataset):
    return dataset.map(lambda x, y: (tf.sparse.from_dense(x), y))


def weighted_points():
    return *points(), rng().uniform(0, 2, NUM_SAMPLES)


def two_texts():
    """With masks of their own, and a target each."""
    values = rng().normal(size=(NUM_SAMPLES, LENGTH, 1))
    return (tokens(), tokens()[::-1].copy()), (token_labels(), values)


def points_that_overflow():
    x, y = points()
    x[7] = 6e4  # In float16, of the one rank that has this sample.
    return x, y


def latent_and_real():
    return rng().normal(size=(NUM_SAMPLES, 5)), rng().uniform(size=(NUM_SAMPLES, 5))


def cut(x, y):
    """To the longest sequence of this rank's batch."""
    longest = tf.reduce_max(tf.reduce_sum(tf.cast(x > 0, tf.int32), 1))
    return x[:, :longest], y[:, :longest]


def cut_to_longest(dataset):
    return dataset.map(cut)
