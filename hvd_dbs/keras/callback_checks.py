"""What of a `fit` all ranks must have alike, and what its callbacks and its model need.

That `TrainingStateCallback` stands last is checked in `callbacks/training_state.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import Collective
from hvd_dbs.data.evaluation_stage import EvaluationStage
from hvd_dbs.data.pipeline import stage_of
from hvd_dbs.job.session import Session
from hvd_dbs.keras.callbacks.metric_average import MetricAverageCallback
from hvd_dbs.watchdog.activity import call_of_fit

_ON_METRICS = (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau)
_IS_SAME = "hvd_dbs_is_same"
_STEERING = (*_ON_METRICS, keras.callbacks.LearningRateScheduler)


def callbacks_of_fit() -> list[keras.callbacks.Callback]:
    """The callbacks of the `fit` under way, as far as they can be seen."""
    call = call_of_fit()
    given = None if call is None else call.f_locals.get("callbacks")
    return list(getattr(given, "callbacks", None) or [])


def require_same_fit(callback: keras.callbacks.Callback, collective: Collective) -> None:
    """Checks that all ranks were given the same arguments of `fit`. Once a `fit`, and collective.

    The first that a callback does with other ranks: those without it would not follow.

    Raises:
        ValueError: On all ranks, if they were given different ones.
    """
    params = callback.params  # Keras gives all callbacks of a fit the same object, elsewhere none.
    if params is not None and _IS_SAME not in params:
        params[_IS_SAME] = True
        agreement.require_equal(collective, _arguments_of_fit(callback.model, params))


def _arguments_of_fit(model: keras.Model, params: Mapping[str, Any]) -> dict[str, str]:
    """What of the call of `fit` ranks would wait for each other for, if it differed."""
    call = call_of_fit()
    given = {} if call is None else call.f_locals
    callbacks = callbacks_of_fit()
    validation = given.get("validation_data")
    is_shared = isinstance(stage_of(validation), EvaluationStage)
    is_heeded = is_shared or _act_on_validation(callbacks)
    is_given = "none" if is_heeded and validation is None else "of no balancer"
    return {
        "epochs": str(params.get("epochs")),
        "initial_epoch": str(given.get("initial_epoch")),
        "steps_per_execution": str(model.steps_per_execution),
        "callbacks=[...] of hvd_dbs": ", ".join(_of_all_ranks(callbacks)),
        "callbacks=[...] that steer": ", ".join(_steering(callbacks)),
        "validation_data": "of a balancer" if is_shared else is_given,
        "validation_freq": str(given.get("validation_freq")) if is_heeded else "",
    }


def _of_all_ranks(callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """The names of this package's callbacks that all ranks need; one alone may save the model."""
    return [
        type(one).__name__
        for one in callbacks
        if type(one).__module__.startswith("hvd_dbs.")
        and not isinstance(one, keras.callbacks.ModelCheckpoint)
    ]


def _steering(callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """The names of Keras's callbacks that change how training goes on."""
    return [type(one).__name__ for one in callbacks if isinstance(one, _STEERING)]


def _act_on_validation(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Whether a callback of Keras changes how training goes on by what a validation finds."""
    return any(isinstance(one, _ON_METRICS) and one.monitor.startswith("val_") for one in callbacks)


def require_any_batch_size(model: keras.Model, session: Session) -> None:
    """Checks that a model with a fixed batch dimension gets no other batches.

    Raises:
        ValueError: If it would, in some step.
    """
    sizes = {one.shape[0] for one in getattr(model, "inputs", None) or []} - {None}
    if not sizes:
        return
    fixed, is_cut = min(sizes), session.micro_batch_size is not None
    controller, stage = session.controller, session.position.stage
    given = session.micro_batch_size or controller.batch_sizes[session.collective.rank]
    left = stage.num_samples % controller.global_batch_size
    may_change = session.collective.size > 1 and not controller.strategy.keeps_plan
    if may_change and not is_cut:
        reason = f"strategy {controller.strategy.name!r} changes the local batch sizes"
    elif stage.is_cut_by_cost:
        reason = "with cost= local batches differ in their number of samples"
    elif given != fixed:
        reason = f"{'a micro-batch' if is_cut else 'the local batch'} of this rank has {given}"
    elif left:
        reason = f"the last step of an epoch has the {left} samples that are left on all ranks"
    else:
        return
    raise ValueError(
        f"{model.name} takes batches of {fixed} samples and no others, as its Input says, but "
        f"{reason}. Use keras.Input(shape) without batch_size or batch_shape; for a model that "
        f"needs them, a strategy that keeps its plan, such as 'even', a number of samples that "
        f"global_batch_size divides, and in the Input the local batch size of the rank."
    )


def require_averages(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Checks that nothing acts on what this rank alone has measured.

    Without averages, metrics of a validation may be the same on all ranks by themselves; those of
    training never are, nor is the loss of a step.

    Raises:
        ValueError: If a callback would.
    """
    if any(isinstance(one, keras.callbacks.TerminateOnNaN) for one in callbacks):
        raise ValueError(
            "TerminateOnNaN would end the training of a rank whose own loss is NaN a step before "
            "the others, which would wait for it. Leave it out; EarlyStopping after "
            "hvd.callbacks.MetricAverageCallback() stops all ranks."
        )
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
