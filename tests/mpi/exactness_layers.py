"""Layers of models in checks: tables that are looked up, losses, what a call has seen."""

from __future__ import annotations

import tensorflow as tf
from keras import layers, ops

import hvd_dbs.keras as hvd
from tests.mpi.exactness_data import CLASSES, LENGTH, VOCABULARY

WIDTH = 8


class Positions(layers.Layer):
    """Tokens plus positions, as in Keras's guides."""

    def __init__(self, mask_zero=True):
        super().__init__()
        self.token = layers.Embedding(VOCABULARY, WIDTH, mask_zero=mask_zero)
        self.position = layers.Embedding(LENGTH, WIDTH)
        self.supports_masking = True

    def compute_mask(self, x, mask=None):
        return self.token.compute_mask(x)

    def call(self, x):
        return self.token(x) + self.position(ops.arange(ops.shape(x)[-1]))


class OfEverySample(layers.Layer):
    """Token types where none are given, and positions repeated for each sample, as in BERT."""

    def __init__(self):
        super().__init__()
        self.token, self.kind = layers.Embedding(VOCABULARY, WIDTH), layers.Embedding(2, WIDTH)
        self.position = layers.Embedding(LENGTH, WIDTH)

    def call(self, x):
        places = ops.tile(ops.arange(LENGTH)[None], (ops.shape(x)[0], 1))
        return self.token(x) + self.kind(ops.zeros_like(x)) + self.position(places)


class RelativePositions(layers.Layer):
    """A bias for each distance: rows looked up more than once, and for no sample."""

    def __init__(self):
        super().__init__()
        self.bias = layers.Embedding(2 * LENGTH, WIDTH)

    def call(self, x):
        places = ops.arange(LENGTH)
        distances = places[:, None] - places[None, :] + LENGTH
        return x + ops.sum(ops.tanh(self.bias(distances)), axis=0)


class Tied(layers.Layer):
    """A language model's head that is its embedding."""

    def __init__(self):
        super().__init__()
        self.token = layers.Embedding(CLASSES + VOCABULARY, WIDTH)

    def call(self, x):
        hidden = ops.tanh(self.token(x))
        return ops.matmul(hidden, ops.transpose(self.token.embeddings))


class Embeddings(layers.Layer):
    """Of tokens, of positions, and one that is the model's head too."""

    def __init__(self):
        super().__init__()
        self.both = Positions(mask_zero=False)
        self.tied = Tied()

    def call(self, x):
        hidden = self.both(x) + self.tied.token(x)
        return ops.matmul(hidden, ops.transpose(self.tied.token.embeddings))


class OneTable(layers.Layer):
    """Tokens and positions looked up in one table."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(VOCABULARY + LENGTH, WIDTH)

    def call(self, x):
        return self.table(x) + self.table(VOCABULARY + ops.arange(LENGTH))


class Bag(layers.Layer):
    """The mean of the embeddings of a sample's tokens, each looked up once for a batch."""

    def build(self, shape):
        self.table = self.add_weight((VOCABULARY, WIDTH), name="table")

    def call(self, x):
        table = tf.convert_to_tensor(self.table)
        return tf.nn.safe_embedding_lookup_sparse(table, tf.sparse.from_dense(x), combiner="mean")


class Adding(layers.Layer):
    """Adds a loss that is no mean over samples."""

    def call(self, x):
        self.add_loss(0.01 * hvd.global_sum(ops.square(x)))
        self.add_loss(hvd.global_mean(ops.square(x), x > 0))
        self.add_loss(0.1 * ops.mean(ops.abs(x)))
        return x


class Seeing(layers.Layer):
    """Keeps the most samples that one call had, and how often it was traced."""

    def __init__(self):
        super().__init__()
        self.most = self.add_weight(
            name="most", dtype="int32", initializer="zeros", trainable=False
        )
        self.num_traces = 0

    def call(self, x, training=False):
        if training:
            self.num_traces += 1
            self.most.assign(ops.maximum(self.most, ops.shape(x)[0]))
        return x
