"""The models that are trained: small, with steps of 100 to 150 ms on a core of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import datasets
import keras_digits

_WIDTH = 2048
"""Of the layers of the wide net: 16 MiB of weights each, so each one's gradients are a bucket."""

Samples = tuple[NDArray[Any], NDArray[np.int64]]


@dataclass(frozen=True)
class Task:
    """A model and what it is trained on.

    Attributes:
        samples_per_rank: Samples of the global batch for each rank.
        momentum: Of the optimizer.
        make_model: The model, not compiled; its last layer gives logits.
        make_samples: So many samples.
    """

    samples_per_rank: int
    momentum: float
    make_model: Callable[[], keras.Model]
    make_samples: Callable[[int], Samples]

    def compiled_model(
        self, make_optimizer: Callable[[keras.optimizers.Optimizer], keras.optimizers.Optimizer]
    ) -> keras.Model:
        """A model with the same first weights on every call and every rank."""
        keras.utils.set_random_seed(1)
        model = self.make_model()
        model.compile(
            optimizer=make_optimizer(keras.optimizers.SGD(1e-3, momentum=self.momentum)),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
        return model


def _digits(num_samples: int) -> Samples:
    (images, labels), _ = datasets.load_digits()
    rows = np.arange(num_samples) % len(images)
    return images[rows], labels[rows]


def _pictures(num_samples: int) -> Samples:
    random = np.random.default_rng(0)
    pictures = random.standard_normal((num_samples, 32, 32, 3), np.float32)
    return pictures, random.integers(0, 10, num_samples)


def _words(length: int, num_words: int) -> Callable[[int], Samples]:
    def samples(num_samples: int) -> Samples:
        random = np.random.default_rng(0)
        words = random.integers(0, num_words, (num_samples, length)).astype(np.int32)
        return words, random.integers(0, 10, num_samples)

    return samples


def _vectors(num_samples: int) -> Samples:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((num_samples, _WIDTH), np.float32)
    return vectors, random.integers(0, 10, num_samples)


def _wide_net() -> keras.Model:
    wide = [layers.Dense(_WIDTH, activation="relu") for _ in range(3)]
    return keras.Sequential([layers.Input((_WIDTH,)), *wide, layers.Dense(10)])


def _residual_net() -> keras.Model:
    inputs = x = layers.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        shortcut = layers.Conv2D(width, 1, strides=stride, use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
        x = layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.Add()([x, shortcut])
    x = layers.GlobalAveragePooling2D()(layers.Activation("relu")(x))
    return keras.Model(inputs, layers.Dense(10)(x))


def _embedding_net() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((128,), dtype="int32"),
            layers.Embedding(20_000, 64),  # Its gradient is sparse.
            layers.Conv1D(256, 5, padding="same", activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def _transformer() -> keras.Model:
    length, width = 64, 64
    inputs = layers.Input((length,), dtype="int32")
    # Not trained, so that this is the model whose gradients are all dense.
    x = layers.Embedding(1_000, width, trainable=False)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(num_heads=4, key_dim=width // 4)(y, y)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(10)(x))


TASKS = {
    "digits": Task(192, 0.9, lambda: keras_digits.make_model((32, 32, 1)), _digits),
    "wide": Task(64, 0.0, _wide_net, _vectors),
    "residual": Task(160, 0.9, _residual_net, _pictures),
    "embedding": Task(256, 0.0, _embedding_net, _words(128, 20_000)),
    "transformer": Task(192, 0.9, _transformer, _words(64, 1_000)),
}
