"""Small models of the kinds that Keras's guides train; each function returns a model and its data.

`hvd-dbs verify --model tests.mpi.guide_models:transformer` verifies one of them.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvd_dbs.keras import global_mean

NUM_SAMPLES = 164
LENGTH = 8
WORDS = 30


def _tokens(random, count=NUM_SAMPLES):
    """Sentences of different lengths, padded with 0."""
    tokens = random.integers(1, WORDS, (count, LENGTH))
    lengths = random.integers(1, LENGTH + 1, count)
    return np.where(np.arange(LENGTH) < lengths[:, np.newaxis], tokens, 0)


class Embedding(layers.Layer):
    """Tokens and their positions."""

    def __init__(self, width, mask_zero=True, **options):
        super().__init__(**options)
        self.tokens = layers.Embedding(WORDS, width, mask_zero=mask_zero)
        self.positions = layers.Embedding(LENGTH, width)

    def call(self, tokens):
        return self.tokens(tokens) + self.positions(keras.ops.arange(LENGTH))

    def compute_mask(self, tokens, mask=None):
        return self.tokens.compute_mask(tokens)


def _block(x, width, causal=False):
    """Attention and two dense layers, each added to what it was given."""
    attention = layers.MultiHeadAttention(2, width // 2, dropout=0.1)
    x = layers.LayerNormalization()(x + attention(x, x, use_causal_mask=causal))
    inner = layers.Dense(width)(layers.Dense(2 * width, activation="gelu")(x))
    return layers.LayerNormalization()(x + layers.Dropout(0.1)(inner))


def no_plant(x):
    return x


def transformer(plant=no_plant, loss="sparse_categorical_crossentropy"):
    """A text classifier: embeddings of tokens and positions, padding masked, Adam."""
    random = np.random.default_rng(1)
    words = keras.Input([LENGTH], dtype="int64")
    x = _block(Embedding(8)(words), 8)
    x = plant(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(words, layers.Dense(3, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model, (_tokens(random), random.integers(0, 3, NUM_SAMPLES))


def language_model(plant=no_plant, loss=None):
    """A next-token model: the loss leaves out padding, Adam."""
    random = np.random.default_rng(2)
    tokens = _tokens(random)
    words = keras.Input([LENGTH], dtype="int64")
    x = _block(Embedding(8, mask_zero=False)(words), 8, causal=True)
    model = keras.Model(words, layers.Dense(WORDS)(plant(x)))
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model, (tokens, np.roll(tokens, -1, axis=1) * (np.arange(LENGTH) < LENGTH - 1))


def images(synchronized=True):
    """An image classifier with synchronized batch normalization, dropout and momentum."""
    random = np.random.default_rng(3)
    model = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(synchronized=synchronized),
            layers.Activation("relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.3),
            layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    pixels = random.normal(size=(NUM_SAMPLES, 8, 8, 1)).astype("float32")
    return model, (pixels, random.integers(0, 4, NUM_SAMPLES))


class Gan(keras.Model):
    """Two models that train each other, each with an optimizer of its own."""

    def __init__(self, plant=no_plant, mean=global_mean):
        super().__init__()
        latent, values = keras.Input([4]), keras.Input([6])
        x = layers.Dense(16, activation="tanh")(latent)
        self.generator = keras.Model(latent, layers.Dense(6)(x))
        x = plant(layers.Dense(16, activation="tanh")(values))
        self.discriminator = keras.Model(values, layers.Dense(1)(x))
        self.mean = mean
        self.d_loss = keras.metrics.Mean("d_loss")
        self.g_loss = keras.metrics.Mean("g_loss")

    def compile(self, d_optimizer, g_optimizer):
        super().compile(optimizer=d_optimizer)
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def losses_for(self, labels, scores):
        """One loss for each sample."""
        return keras.losses.binary_crossentropy(labels, scores, from_logits=True)

    def train_step(self, data):
        real, latent = data
        made = self.generator(latent, training=True)
        with tf.GradientTape() as tape:
            scores = self.discriminator(tf.concat([real, made], 0), training=True)
            labels = tf.concat([tf.ones_like(real[:, :1]), tf.zeros_like(real[:, :1])], 0)
            d_losses = self.losses_for(labels, scores)
            loss = self.mean(d_losses)
        variables = self.discriminator.trainable_variables
        self.d_optimizer.apply(tape.gradient(loss, variables), variables)
        with tf.GradientTape() as tape:
            scores = self.discriminator(self.generator(latent, training=True), training=True)
            g_losses = self.losses_for(tf.ones_like(scores), scores)
            loss = self.mean(g_losses)
        variables = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(loss, variables), variables)
        self.d_loss.update_state(d_losses)
        self.g_loss.update_state(g_losses)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


def gan(plant=no_plant, mean=global_mean):
    """A generative adversarial net; its latent vectors are data, so that it can be compared."""
    random = np.random.default_rng(4)
    model = Gan(plant, mean)
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01))
    real, latent = random.normal(1, 1, (NUM_SAMPLES, 6)), random.normal(size=(NUM_SAMPLES, 4))
    return model, (real.astype("float32"), latent.astype("float32"))


class Vae(keras.Model):
    """A variational autoencoder; its noise is data."""

    def __init__(self, plant=no_plant, mean=global_mean):
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(4)])
        self.decoder = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(6)])
        self.plant, self.mean = plant, mean
        self.loss_tracker = keras.metrics.Mean("loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, inputs):
        values, noise = inputs
        mean, log_variance = tf.split(self.plant(self.encoder(values)), 2, axis=1)
        decoded = self.decoder(mean + tf.exp(0.5 * log_variance) * noise)
        divergence = -0.5 * (1 + log_variance - mean**2 - tf.exp(log_variance))
        return decoded, tf.reduce_sum(divergence, axis=1)

    def train_step(self, data):
        values, noise = data
        with tf.GradientTape() as tape:
            decoded, divergence = self((values, noise), training=True)
            losses = tf.reduce_sum((decoded - values) ** 2, axis=1) + divergence
            loss = self.mean(losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(losses)
        return {"loss": self.loss_tracker.result()}


def vae(plant=no_plant, mean=global_mean):
    """A variational autoencoder with a `train_step` of its own."""
    random = np.random.default_rng(5)
    model = Vae(plant, mean)
    model.compile(keras.optimizers.Adam(0.01))
    values, noise = random.normal(size=(NUM_SAMPLES, 6)), random.normal(size=(NUM_SAMPLES, 2))
    return model, (values.astype("float32"), noise.astype("float32"))


def translation():
    """An encoder and a decoder with padding masked; losses of padding are left out by the mask."""
    random = np.random.default_rng(6)
    source, target = keras.Input([None], dtype="int64"), keras.Input([None], dtype="int64")
    x = layers.Embedding(WORDS, 6, mask_zero=True)(source)
    _, state = layers.GRU(6, return_state=True, dropout=0.1)(x)
    y = layers.Embedding(WORDS, 6, mask_zero=True)(target)
    y = layers.GRU(6, return_sequences=True)(y, initial_state=state)
    model = keras.Model([source, target], layers.Dense(WORDS, activation="softmax")(y))
    model.compile(
        keras.optimizers.RMSprop(0.01),
        "sparse_categorical_crossentropy",
        weighted_metrics=["accuracy"],
    )
    given, wanted = _tokens(random), _tokens(random)
    return model, ((given, wanted), np.roll(wanted, -1, axis=1))


def structured(plant=no_plant, loss="binary_crossentropy"):
    """Columns of a table: numbers, and categories as embeddings, as a dict; class weights."""
    random = np.random.default_rng(7)
    age, income = keras.Input([1], name="age"), keras.Input([1], name="income")
    city = keras.Input([1], dtype="int64", name="city")
    embedded = layers.Flatten()(layers.Embedding(9, 3)(city))
    x = plant(layers.Dense(8, activation="relu")(layers.concatenate([age, income, embedded])))
    inputs = {"age": age, "income": income, "city": city}
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy", "auc"])
    table = {
        "age": random.normal(size=(NUM_SAMPLES, 1)).astype("float32"),
        "income": random.normal(size=(NUM_SAMPLES, 1)).astype("float32"),
        "city": random.integers(0, 9, (NUM_SAMPLES, 1)),
    }
    labels = random.integers(0, 2, (NUM_SAMPLES, 1))
    return model, (table, labels), {"class_weight": {0: 1.0, 1: 3.0}}


def lora(plant=no_plant, loss=None):
    """A net of which only low-rank additions are trained."""
    random = np.random.default_rng(8)
    first, last = layers.Dense(12, activation="relu"), layers.Dense(3)
    inputs = keras.Input([6])
    model = keras.Model(inputs, last(plant(first(inputs))))
    for layer in (first, last):
        layer.enable_lora(2)
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01), loss, metrics=["accuracy"])
    values = random.normal(size=(NUM_SAMPLES, 6)).astype("float32")
    return model, (values, random.integers(0, 3, NUM_SAMPLES))


def weighted():
    """Two outputs with sample weights, one loss of which is a sum."""
    random = np.random.default_rng(9)
    inputs = keras.Input([6])
    x = layers.Dense(8, activation="tanh")(inputs)
    outputs = {"size": layers.Dense(1, name="size")(x), "kind": layers.Dense(3, name="kind")(x)}
    model = keras.Model(inputs, outputs)
    kind = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = {"size": keras.losses.MeanSquaredError(reduction="sum"), "kind": kind}
    model.compile(keras.optimizers.SGD(0.005), losses, loss_weights={"size": 0.1, "kind": 1.0})
    values = random.normal(size=(NUM_SAMPLES, 6)).astype("float32")
    labels = {
        "size": random.normal(size=(NUM_SAMPLES, 1)).astype("float32"),
        "kind": random.integers(0, 3, NUM_SAMPLES),
    }
    weights = {name: random.random(NUM_SAMPLES).astype("float32") for name in labels}
    return model, (values, labels, weights)
