"""Keeps XLA away from a step that holds collective operations."""

from __future__ import annotations

import logging

import horovod.tensorflow as hvd
import keras

_LOGGER = logging.getLogger(__name__)


def turn_off_xla(model: keras.Model) -> bool:
    """Makes a compiled model train without XLA, which can compile no collective operation.

    Where a GPU is visible, Keras turns XLA on by itself (`jit_compile="auto"`), and the first step
    would fail. To be called where `fit` begins; the same on all ranks, and no error on any.

    Args:
        model: A compiled Keras model.

    Returns:
        Whether it was on.
    """
    if not model.jit_compile:
        return False
    model.jit_compile = False
    if getattr(model, "train_function", None) is not None:
        model.make_train_function(force=True)  # `fit` has made it before its callbacks run.
    if hvd.rank() == 0:
        _LOGGER.warning(
            "XLA is turned off for training %s: Horovod's operations cannot be compiled by it. "
            "Give compile jit_compile=False to say so yourself.",
            model.name,
        )
    return True
