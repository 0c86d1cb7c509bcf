"""The epoch in which `fit` begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

if TYPE_CHECKING:
    from hvd_dbs.balancer import Balancer


def set_initial_epoch(model: keras.Model, balancer: Balancer) -> None:
    """Lets a `fit` that is about to begin go on in the epoch in which training stands.

    Does nothing where there is no such place. Keras's `BackupAndRestore` does it the same way.
    """
    if balancer.loop.position.start is not None:
        model._initial_epoch = balancer.loop.position.start.epoch


def clear_initial_epoch(model: keras.Model, balancer: Balancer) -> None:
    """Lets the next `fit` begin where its arguments say; to be called before training goes on."""
    if balancer.loop.position.start is not None:
        model._initial_epoch = None
