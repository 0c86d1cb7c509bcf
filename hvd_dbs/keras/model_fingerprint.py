"""A short text that tells a model from others whose steps take another time."""

from __future__ import annotations

import hashlib

import keras

from hvd_dbs.keras.internals import all_layers
from hvd_dbs.keras.model_build import build_for_fit


def model_fingerprint(model: keras.Model) -> str:
    """What a profile of speeds knows a model by: its weights' shapes, inputs and precision.

    A model of which other weights are trained is another one, since its steps take another time.

    Names do not count, since Keras numbers layers by what a process has made before.

    Args:
        model: A compiled model that `fit` has been called of; it is built if it can be.
    """
    build_for_fit(model)
    weights = [
        (str(tuple(weight.shape)), str(weight.dtype), bool(weight.trainable))
        for weight in model.weights
    ]
    inputs = [str(tuple(one.shape)) for one in getattr(model, "inputs", None) or []]
    precisions = sorted({layer.dtype_policy.name for layer in all_layers(model)})
    text = repr((type(model).__name__, weights, inputs, precisions))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
