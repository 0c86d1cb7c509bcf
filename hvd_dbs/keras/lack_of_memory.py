"""Names what to do where a training step runs out of memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from hvd_dbs.job.memory_bounds import StepTooLargeError
from hvd_dbs.job.places import own_place
from hvd_dbs.job.session import Session
from hvd_dbs.watchdog.crash_report import last_line

_NAMES = "_hvd_dbs_names_lack_of_memory"
"""Attribute of a function that makes a model's steps, and of these."""


def name_lack_of_memory(model: keras.Model, session: Session) -> None:
    """Lets the steps of a `fit` raise MemoryError with rank, batch size and the bound to set.

    To be called before `fit` makes its step.

    Args:
        model: A compiled model.
        session: The job.
    """
    make = getattr(model.make_train_function, _NAMES, model.make_train_function)

    def make_train_function(force: bool = False) -> Any:
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
            is_cut = session.micro_batch_size is not None
            kind = MemoryError if is_cut else StepTooLargeError
            raise kind(_what_to_do(session, error)) from error

    setattr(named, _NAMES, step)
    return named


def _what_to_do(session: Session, error: tf.errors.ResourceExhaustedError) -> str:
    rank, size, place = session.collective.rank, session.micro_batch_size, own_place()
    num_samples = session.loop.agreed_plan.batch_sizes[rank]
    most = num_samples if size is not None else session.memory.note_lack(num_samples)
    cut = "" if size is None else f", in micro-batches of {size} samples"
    advice = (
        f"Bound it: Balancer(..., max_batch_size=...) for {place.host!r} or "
        f"{place.device!r}: {most}; or give micro_batch_size, or "
        f'max_batch_size="auto".'
    )
    if size is not None:
        advice = f"Give smaller ones: micro_batch_size={max(1, size // 2)}."
    # TensorFlow's text has the graph around the line that says what was to be allocated.
    found = re.search(r"OOM when allocating[^\n]*", error.message)
    text = found[0] if found else last_line(error)
    return (
        f"Rank {rank} (host {place.host}) has run out of memory in a step of "
        f"{num_samples} samples{cut}: {text}. {advice}"
    )
