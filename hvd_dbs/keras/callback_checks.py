"""Which callbacks all ranks must have alike, and which need the metrics of all ranks first.

That `TrainingStateCallback` stands last is checked in `callbacks/training_state.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras

from hvd_dbs.keras.callbacks.metric_average import MetricAverageCallback

_ON_METRICS = (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau)
_STEERING = (*_ON_METRICS, keras.callbacks.LearningRateScheduler)


def of_all_ranks(callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """The names of this package's callbacks that all ranks need; one alone may save the model."""
    return [
        type(one).__name__
        for one in callbacks
        if type(one).__module__.startswith("hvd_dbs.")
        and not isinstance(one, keras.callbacks.ModelCheckpoint)
    ]


def steering(callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """The names of Keras's callbacks that change how training goes on."""
    return [type(one).__name__ for one in callbacks if isinstance(one, _STEERING)]


def require_averages(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Checks that nothing acts on what this rank alone has measured.

    Without averages, metrics of a validation may be the same on all ranks by themselves; those of
    training never are.

    Raises:
        ValueError: If a callback would.
    """
    are_averaged = any(isinstance(one, MetricAverageCallback) for one in callbacks)
    for callback in callbacks:
        if isinstance(callback, MetricAverageCallback):
            return
        if not isinstance(callback, _ON_METRICS):
            continue
        if are_averaged or not callback.monitor.startswith("val_"):
            raise ValueError(
                f"{type(callback).__name__}(monitor={callback.monitor!r}) would act on this rank's "
                f"own value, and ranks would go different ways. In the callbacks of fit, "
                f"hvd.callbacks.MetricAverageCallback() stands before it."
            )
