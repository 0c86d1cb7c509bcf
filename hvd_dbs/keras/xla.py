"""Keeps XLA away from what holds collective operations, in a step and around it."""

from __future__ import annotations

import logging

import horovod.tensorflow as hvd
import keras

from hvd_dbs.keras.micro_batched_training import micro_batches_of

_LOGGER = logging.getLogger(__name__)


def turn_off_xla(model: keras.Model) -> bool:
    """Makes a compiled model train without XLA where ranks exchange something.

    XLA can compile no collective operation. Forward and backward pass of Keras's own step are still
    compiled; of a step of the model's own nothing is. Where a GPU is visible, Keras turns XLA on
    by itself (`jit_compile="auto"`). To be called where `fit` begins; the same on all ranks, and
    no error on any.

    Args:
        model: A compiled Keras model.

    Returns:
        Whether it was on for the whole step.
    """
    if not model.jit_compile:
        return False
    model.jit_compile = False
    if getattr(model, "train_function", None) is not None:
        model.make_train_function(force=True)  # `fit` has made it before its callbacks run.
    if hvd.rank() != 0:
        return True
    training = micro_batches_of(model)
    if training is None or not training.uses_xla:
        _LOGGER.warning(
            "XLA is turned off for training %s: it cannot compile operations of Horovod, which its "
            "train_step, or synchronized batch normalization, has amidst others. "
            "Give compile jit_compile=False to say so yourself.",
            model.name,
        )
    elif not training.has_micro_batches:
        _LOGGER.warning(
            "XLA compiles the step of %s anew for each local batch size that a plan gives this "
            "rank, and the other ranks wait meanwhile. Give Balancer a micro_batch_size, whose "
            "one shape is compiled once, or compile jit_compile=False.",
            model.name,
        )
    return True
