"""Keeps the best model of a training."""

from __future__ import annotations

import keras


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """A `ModelCheckpoint` that saves the best model only.

    Give it to rank 0 alone, after `MetricAverageCallback`: otherwise all ranks write one file.

    Args:
        monitor: The metric that decides.
        verbose: Whether to say when a model is saved.
        save_weights_only: Whether to leave the architecture out.
        mode: "min", "max" or "auto".
        save_freq: "epoch" or a number of steps.
        filepath: Where to; may be set later, before training.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str | None = None,
    ) -> None:
        default = "best_model.weights.h5" if save_weights_only else "best_model.keras"
        super().__init__(
            filepath=filepath or default,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
