"""Keeps AutoGraph from this package's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])


def do_not_convert(function: _Function) -> _Function:
    """Has AutoGraph call a function as it is, and all that it calls.

    In a `tf.function` of a user's own, AutoGraph rewrites every Python function that is called, so
    that Python's `if` and `for` may depend on tensors. None does here, and rewriting those that
    reduce gradients takes seconds on a slow core, in each process.
    """
    kept: _Function = tf.autograph.experimental.do_not_convert(function)
    return kept
