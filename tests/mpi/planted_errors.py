"""Guide models with errors that one process does not show: `hvd-dbs verify` must find them."""

from __future__ import annotations

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from keras import layers

from hvd_dbs.tensorflow.global_batch import current_global_batch
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


class ScaleByAllValid(layers.Layer):
    """Divides by how many values of all ranks' samples are not 0."""

    def call(self, x):
        valid = tf.reduce_sum(tf.cast(x > 0, x.dtype))
        batch = current_global_batch()
        return 20.0 * x / tf.maximum(valid if batch is None else batch.sum(valid), 1.0)


class Noise(layers.Layer):
    """Draws numbers in training that nothing turns off."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def call(self, x):
        return x + keras.random.normal(tf.shape(x), seed=self.seed)


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
    losses = keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)
    weights = tf.cast(labels == 0, losses.dtype)
    return tf.reduce_sum(losses * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)


def sum_of_losses(labels, scores):
    """A sum that Keras is given as if it were a mean."""
    return 0.05 * tf.reduce_sum(keras.losses.binary_crossentropy(labels, scores))


def language_model_layer():
    return guide_models.language_model(plant=ScaleByValid())


def language_model_loss():
    return guide_models.language_model(loss=loss_of_valid_tokens)


def structured_layer():
    return guide_models.structured(plant=ScaleByValid())


def structured_loss():
    return guide_models.structured(loss=sum_of_losses)[:2]  # Class weights apply to samples.


def gan_layer():
    return guide_models.gan(plant=CentreOnBatch())


def gan_loss():
    return guide_models.gan(mean=mean_of_rare)


def vae_layer():
    return guide_models.vae(plant=ScaleByValid())


def vae_loss():
    return guide_models.vae(mean=mean_of_rare)


def lora_layer():
    return guide_models.lora(plant=CentreOnBatch())


def lora_loss():
    return guide_models.lora(loss=loss_of_first_class)


def repaired():
    return guide_models.structured(plant=ScaleByAllValid())


def noisy():
    return guide_models.lora(plant=Noise())


def unsynchronized():
    return guide_models.images(synchronized=False)


def fails_on_last_rank():
    if hvd.rank() == hvd.size() - 1:
        raise OSError("no such file: weights.h5")
    return guide_models.lora()


def other_model_on_last_rank():
    return guide_models.lora() if hvd.rank() == hvd.size() - 1 else guide_models.structured()


def other_data_on_last_rank():
    model, (values, labels) = guide_models.lora()
    return model, (values + hvd.rank(), labels)
