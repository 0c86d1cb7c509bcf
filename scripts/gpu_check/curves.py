"""The time of a training step by batch size, on the device of rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd

_LARGEST, _WARM_UP, _REPEATS = 96, 2, 5
"""Samples, and steps with each number of them: a batch size that is new tunes its kernels first."""


def measure_curves(device: str, *, small: bool) -> dict[str, Any]:
    """Measures every batch size on rank 0 while the others wait.

    The batch is on the device, and a step ends when the host has its loss.

    Args:
        device: "GPU" or "CPU".
        small: Whether to try it only.

    Returns:
        For each model the median milliseconds of a step with 1, 2, ... samples.
    """
    if hvd.rank() != 0:
        return {}
    models: dict[str, tuple[str, Callable[[], tuple[keras.Model, tf.Tensor]]]] = {
        "ResNet-50, float32": ("float32", lambda: _resnet(224, small=small)),
        "ResNet-50, bfloat16": ("mixed_bfloat16", lambda: _resnet(224, small=small)),
        "encoder, bfloat16": ("mixed_bfloat16", lambda: _encoder(small=small)),
        "mixer, float32": ("float32", lambda: _mixer(small=small)),
    }
    # What users have who change nothing; the other parts of the check turn it off.
    tf.config.experimental.enable_tensor_float_32_execution(True)
    try:
        with tf.device(f"{device}:0"):
            return {name: _curve(policy, make) for name, (policy, make) in models.items()}
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(False)


def _resnet(size: int, *, small: bool) -> tuple[keras.Model, tf.Tensor]:
    if small:
        layers = [keras.Input([8, 8, 3]), keras.layers.Conv2D(4, 3), keras.layers.Flatten()]
        return keras.Sequential([*layers, keras.layers.Dense(10)]), tf.random.normal([3, 8, 8, 3])
    model = keras.applications.ResNet50(
        weights=None, input_shape=(size, size, 3), classifier_activation=None
    )
    return model, tf.random.normal([_LARGEST, size, size, 3])


def _encoder(*, small: bool) -> tuple[keras.Model, tf.Tensor]:
    """Twelve layers of BERT-base, on 128 vectors a sample."""
    length, width, depth = (4, 16, 1) if small else (128, 768, 12)
    value = inputs = keras.Input([length, width])
    for _ in range(depth):
        attention = keras.layers.MultiHeadAttention(width // 64 or 1, min(64, width))
        value = keras.layers.LayerNormalization()(value + attention(value, value))
        inner = keras.layers.Dense(4 * width, activation="gelu")(value)
        value = keras.layers.LayerNormalization()(value + keras.layers.Dense(width)(inner))
    outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(value))
    return keras.Model(inputs, outputs), tf.random.normal([3 if small else _LARGEST, length, width])


def _mixer(*, small: bool) -> tuple[keras.Model, tf.Tensor]:
    """Eight layers of MLP-Mixer S/16 (Tolstikhin et al., 2021), on 196 patches a sample."""
    length, width, depth = (4, 16, 1) if small else (196, 512, 8)
    value = inputs = keras.Input([length, width])
    for _ in range(depth):
        turned = keras.layers.Permute((2, 1))(keras.layers.LayerNormalization()(value))
        inner = keras.layers.Dense(width // 2, activation="gelu")(turned)
        value = value + keras.layers.Permute((2, 1))(keras.layers.Dense(length)(inner))
        normal = keras.layers.LayerNormalization()(value)
        inner = keras.layers.Dense(4 * width, activation="gelu")(normal)
        value = value + keras.layers.Dense(width)(inner)
    outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(value))
    return keras.Model(inputs, outputs), tf.random.normal([3 if small else _LARGEST, length, width])


def _curve(policy: str, make: Callable[[], tuple[keras.Model, tf.Tensor]]) -> list[float]:
    keras.config.set_dtype_policy(policy)
    try:
        model, samples = make()
    finally:
        keras.config.set_dtype_policy("float32")
    labels = tf.zeros([len(samples)], tf.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.001)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(count: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(labels[:count], model(samples[:count], training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return value

    milliseconds = []
    for count in range(1, len(samples) + 1):
        number = tf.constant(count)
        times = []
        for _ in range(_WARM_UP + _REPEATS):
            start = time.perf_counter()
            step(number).numpy()
            times.append(time.perf_counter() - start)
        milliseconds.append(round(1e3 * float(np.median(times[_WARM_UP:])), 3))
    return milliseconds
