"""Small models of what people train; see `exactness_checks` and `exactness_data`."""

from __future__ import annotations

from functools import partial

import keras
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


class Adding(layers.Layer):
    """Adds a loss that is no mean over samples."""

    def call(self, x):
        self.add_loss(0.01 * hvd.global_sum(ops.square(x)))
        self.add_loss(hvd.global_mean(ops.square(x), x > 0))
        self.add_loss(0.1 * ops.mean(ops.abs(x)))
        return x


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


class Bag(layers.Layer):
    """The mean of the embeddings of a sample's tokens, each looked up once for a batch."""

    def build(self, shape):
        self.table = self.add_weight((VOCABULARY, WIDTH), name="table")

    def call(self, x):
        table = tf.convert_to_tensor(self.table)
        return tf.nn.safe_embedding_lookup_sparse(table, tf.sparse.from_dense(x), combiner="mean")


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
