"""Names the rank where a training step of `fit` runs out of memory, on all ranks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from hvd_dbs.job.lack_of_memory import what_to_do
from hvd_dbs.job.memory_bounds import StepTooLargeError
from hvd_dbs.job.session import Session
from hvd_dbs.keras.callback_checks import callbacks_of_fit
from hvd_dbs.keras.model_optimizers import balancer_of
from hvd_dbs.tensorflow.gradient_reducer import not_followed
from hvd_dbs.watchdog.activity import is_fit
from hvd_dbs.watchdog.crash_report import notice_of_others, notify_others

_NAMES = "_hvd_dbs_names_lack_of_memory"
"""Attribute of a function that makes a model's steps, and of these."""


def name_lack_of_memory(callback: keras.callbacks.Callback, session: Session) -> None:
    """Lets the steps of a `fit` raise MemoryError with rank, batch size and the bound to set.

    On the other ranks, which wait for that one, they raise HorovodInternalError with the same
    text, and likewise where another rank has failed otherwise. A later `fit` without the callback
    raises ValueError: its steps would have the samples of this one's. To be called before `fit`
    makes its step.

    Args:
        callback: Has a compiled model, and follows its steps.
        session: The job.
    """
    model, is_later = callback.model, False
    make = getattr(model.make_train_function, _NAMES, model.make_train_function)

    def make_train_function(force: bool = False) -> Any:
        nonlocal is_later
        if is_fit(sys._getframe(1)):
            if is_later and callback not in callbacks_of_fit() and balancer_of(model) is not None:
                raise not_followed()
            is_later = True
        make(force=force)
        if not hasattr(model.train_function, _NAMES):
            model.train_function = _naming(model.train_function, session)
        return model.train_function

    setattr(make_train_function, _NAMES, make)
    model.make_train_function = make_train_function


def _naming(step: Callable[..., Any], session: Session) -> Callable[..., Any]:
    @functools.wraps(step)
    def named(iterator: Any) -> Any:
        try:
            return step(iterator)
        except tf.errors.ResourceExhaustedError as error:
            text = what_to_do(session, error)
            notify_others(text)
            is_cut = session.micro_batch_size is not None
            kind = MemoryError if is_cut else StepTooLargeError
            raise kind(text) from error
        except tf.errors.OpError as error:
            if text := notice_of_others(error):
                raise HorovodInternalError(text) from error
            raise

    setattr(named, _NAMES, step)
    return named
