"""Guide models with an error that one process does not show: `hvd-dbs verify` must find it."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from tests.mpi import guide_models


class CentreOnBatch(layers.Layer):
    """Takes away the mean of the samples that its rank happens to have."""

    def call(self, x):
        return x - tf.reduce_mean(x, axis=0)


class ScaleByValid(layers.Layer):
    """Divides by how many values of its rank's samples are not 0."""

    def call(self, x):
        valid = tf.reduce_sum(tf.cast(x > 0, x.dtype))
        return 20.0 * x / tf.maximum(valid, 1.0)


def mean_of_rare(values):
    """A mean by the number of values that are large, of its own rank."""
    large = tf.cast(values > tf.reduce_mean(values), values.dtype)
    return tf.reduce_sum(values * large) / tf.maximum(tf.reduce_sum(large), 1.0)


def loss_of_valid_tokens(labels, scores):
    """A number for the whole batch, divided by the tokens that its rank happens to have."""
    losses = keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)
    valid = tf.cast(labels > 0, losses.dtype)
    return tf.reduce_sum(losses * valid) / tf.reduce_sum(valid)


def loss_of_first_class(labels, scores):
    """A number for the whole batch, divided by the samples of a class."""
    labels = tf.reshape(labels, [-1])
    losses = keras.losses.sparse_categorical_crossentropy(labels, scores)
    weights = tf.cast(labels == 0, losses.dtype)
    return tf.reduce_sum(losses * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)


def sum_of_losses(labels, scores):
    """A sum that Keras is given as if it were a mean."""
    return 0.05 * tf.reduce_sum(keras.losses.binary_crossentropy(labels, scores))


def transformer_layer():
    return guide_models.transformer(plant=CentreOnBatch())


def transformer_loss():
    return guide_models.transformer(loss=loss_of_first_class)


def language_model_layer():
    return guide_models.language_model(plant=ScaleByValid())


def language_model_loss():
    return guide_models.language_model(loss=loss_of_valid_tokens)


def structured_layer():
    return guide_models.structured(plant=ScaleByValid())


def structured_loss():
    return guide_models.structured(loss=sum_of_losses)


def gan_layer():
    return guide_models.gan(plant=CentreOnBatch())


def gan_loss():
    return guide_models.gan(mean=mean_of_rare)


def vae_layer():
    return guide_models.vae(plant=ScaleByValid())


def vae_loss():
    return guide_models.vae(mean=mean_of_rare)
