"""Small models of what people train; see `exactness_checks` and `exactness_data`."""

from __future__ import annotations

from functools import partial

import keras
import tensorflow as tf
from keras import layers, ops

import hvd_dbs.keras as hvd
from tests.mpi.exactness_data import CLASSES, LENGTH, VOCABULARY
from tests.mpi.exactness_layers import (
    WIDTH,
    Adding,
    Bag,
    Embeddings,
    OfEverySample,
    OneTable,
    Positions,
    RelativePositions,
    Tied,
)


def seeded(build):
    def build_anew():
        keras.utils.set_random_seed(1)
        return build()

    return build_anew


def sequential(*more):
    return seeded(
        lambda: keras.Sequential([layers.Input((LENGTH,), dtype="int32"), *(m() for m in more)])
    )


head = partial(layers.Dense, CLASSES)
embedded = partial(layers.Embedding, VOCABULARY, WIDTH)
masked = sequential(partial(layers.Embedding, VOCABULARY, WIDTH, mask_zero=True), head)
unmasked = sequential(embedded, head)
positions = sequential(partial(Positions, mask_zero=False), head)
of_every_sample = sequential(OfEverySample, head)
relative = sequential(embedded, RelativePositions, head)
tied = sequential(Tied)
embeddings = sequential(Embeddings)
one_table = sequential(OneTable, head)


@seeded
def dense():
    return keras.Sequential([layers.Input((5,)), layers.Dense(8, "tanh"), head()])


@seeded
def transformer():
    x = layers.Input((LENGTH,), dtype="int32")
    h = Positions()(x)
    attended = layers.MultiHeadAttention(2, WIDTH // 2)(h, h)
    h = layers.LayerNormalization()(h + attended)
    return keras.Model(x, head()(layers.LayerNormalization()(h + layers.Dense(WIDTH, "gelu")(h))))


@seeded
def two_outputs():
    """Each masked by the tokens of an input of its own."""
    x, other = layers.Input((LENGTH,), dtype="int32"), layers.Input((LENGTH,), dtype="int32")
    embed = layers.Embedding(VOCABULARY, WIDTH, mask_zero=True)
    label, value = head(name="label")(embed(x)), layers.Dense(1, name="value")(embed(other))
    return keras.Model([x, other], [label, value])


@seeded
def recurrent():
    x = layers.Input((LENGTH,), dtype="int32")
    h = layers.Embedding(VOCABULARY, WIDTH, mask_zero=True)(x)
    return keras.Model(x, head()(layers.GRU(WIDTH, return_sequences=True)(h)))


@seeded
def adding():
    regular = keras.regularizers.L2(0.01)
    hidden = layers.Dense(8, "tanh", activity_regularizer=regular, kernel_regularizer=regular)
    return keras.Sequential([layers.Input((5,)), hidden, Adding(), head()])


def cross_entropy(**options):
    # A loss computes in the type that is the default where it is made, here at import.
    return keras.losses.SparseCategoricalCrossentropy(True, dtype="float64", **options)


def by_hand(y, logits):
    """A masked mean written by hand."""
    each = keras.losses.sparse_categorical_crossentropy(ops.maximum(y, 0), logits, True)
    return hvd.global_mean(each, y >= 0)


class OwnStep(keras.Model):
    """A step of its own, whose metrics are given one number each."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=logits)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for metric, number in zip(
            self.metrics, (loss, loss, tf.size(y), tf.math.count_nonzero(y)), strict=True
        ):
            metric.update_state(number)
        return {metric.name: metric.result() for metric in self.metrics}

    @property
    def metrics(self):
        return self.seen


@seeded
def own_step():
    x = layers.Input((LENGTH,), dtype="int32")
    model = OwnStep(x, head()(layers.Embedding(VOCABULARY, WIDTH, mask_zero=True)(x)))
    sums = [keras.metrics.Sum(name=name) for name in ("sum_of_losses", "tokens", "labels")]
    model.seen = [keras.metrics.Mean(name="own"), *sums]
    return model


@seeded
def normalized():
    return keras.Sequential(
        [
            layers.Input((5,)),
            layers.Dense(8),
            layers.BatchNormalization(synchronized=True, momentum=0.5),
            layers.Activation("tanh"),
            head(),
        ]
    )


bag = sequential(Bag, head)


@seeded
def of_sparse_points():
    return keras.Sequential([layers.Input((5,), sparse=True), layers.Dense(8, "tanh"), head()])


@seeded
def spectral():
    hidden = layers.SpectralNormalization(layers.Dense(8, "tanh"))
    return keras.Sequential([layers.Input((5,)), hidden, head()])


class Gan(keras.Model):
    """Two optimizers, neither of them the compiled one; as in Keras's guide."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([layers.Input((5,)), layers.Dense(5)])
        self.discriminator = keras.Sequential([layers.Input((5,)), layers.Dense(1)])
        self.seen = keras.metrics.Mean(name="d_loss")

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.seen]

    def call(self, x):
        return self.generator(x)

    def train_step(self, data):
        latent, real = data
        both = tf.concat([self.generator(latent), real], 0)
        labels = tf.concat([tf.ones_like(latent[:, :1]), tf.zeros_like(real[:, :1])], 0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        gradients = tape.gradient(d_loss, weights)
        self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            fooled = self.discriminator(self.generator(latent))
            g_loss = self.loss_fn(tf.zeros_like(latent[:, :1]), fooled)
        weights = self.generator.trainable_weights
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.seen.update_state(d_loss)
        return {"d_loss": self.seen.result()}


def compile_gan(gan, distributed):
    gan.compile(distributed(keras.optimizers.Adam(0.01)), distributed(keras.optimizers.Adam(0.02)))


@seeded
def several_embeddings():
    x = layers.Input((LENGTH,), dtype="int32")
    words, others = embedded()(x), layers.Embedding(VOCABULARY, 3)(x)
    h = layers.Concatenate()([words, others])
    return keras.Model(x, head()(h))


@seeded
def of_any_length():
    x = layers.Input((None,), dtype="int32")
    return keras.Model(x, head()(Positions()(x)))
