"""The epoch in which `fit` begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras

from hvd_dbs.keras import internals

if TYPE_CHECKING:
    from hvd_dbs.job.position import TrainingPosition


def set_initial_epoch(model: keras.Model, position: TrainingPosition) -> None:
    """Lets a `fit` that is about to begin go on in the epoch in which training stands.

    Does nothing where there is no such place. Keras's `BackupAndRestore` does it the same way.
    """
    if position.start_epoch is not None:
        internals.set_initial_epoch(model, position.start_epoch)


def clear_initial_epoch(model: keras.Model, position: TrainingPosition) -> None:
    """Lets the next `fit` begin where its arguments say; to be called before training goes on."""
    if position.start_epoch is not None:
        internals.set_initial_epoch(model, None)


def require_same_epoch(epochs: Sequence[int]) -> None:
    """Checks that a `fit` begins in one epoch.

    The argument of `fit` does not tell: callbacks that restore training change what it means.

    Args:
        epochs: In which each rank begins, by rank.

    Raises:
        ValueError: If ranks differ, on each that calls this.
    """
    if len(set(epochs)) > 1:
        raise ValueError(
            f"Training begins in epochs {list(epochs)} on ranks 0 to {len(epochs) - 1}. Give a "
            f"callback that restores training, such as BackupAndRestore, to all ranks, with files "
            f"that all of them can read; hvd.callbacks.TrainingStateCallback(folder, balancer) "
            f"needs its files on rank 0 alone."
        )
