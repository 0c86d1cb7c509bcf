"""Variables of models that their first batch would build."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import keras
import tensorflow as tf

from hvd_dbs.keras.internals import (
    build_for,
    data_of_epoch,
    has_unbuilt_metrics,
    is_built,
    trained_by,
)
from hvd_dbs.keras.model_optimizers import optimizers_of
from hvd_dbs.watchdog.activity import call_of_fit

_LOGGER = logging.getLogger(__name__)


def build_for_fit(model: keras.Model) -> bool:
    """Builds model, metrics and optimizer for the data of the `fit` under way.

    Args:
        model: A compiled model that `fit` has been called of; to be called by its callbacks.

    Returns:
        As `build_for_data`.
    """
    fit = call_of_fit()  # Keras tells callbacks nothing of the data.
    iterator = None if fit is None else fit.f_locals.get("epoch_iterator")
    return build_for_data(model, data_of_epoch(iterator))


def build_for_data(model: keras.Model, dataset: tf.data.Dataset | None) -> bool:
    """Builds model, metrics and optimizer for a data set, before the first step.

    Keras leaves that to the first step where a model is subclassed or has no `Input`: too late for
    weights that all ranks shall begin with, or that were saved. It leaves metrics to it always, and
    TensorFlow traces a step twice in which variables are made. Changes nothing that is built.

    Args:
        model: A compiled model.
        dataset: What it will be trained on; None: that is not known.

    Returns:
        Whether model and optimizer have all their variables. Not so where the model is not one
        that can be called on inputs alone, such as one with a `train_step` and no `call`; its
        first step may create more.
    """
    was_built, found = is_built(model), False
    if dataset is not None and (not was_built or _has_metrics_to_build(model)):
        try:
            build_for(model, dataset.element_spec)
            found = True
        except Exception as error:  # Of any type: it is the user's code that is called.
            _LOGGER.debug("the model is left to its first step to build", exc_info=error)
    if not (was_built or found):
        return False
    build_optimizer(model)
    return True


def _has_metrics_to_build(model: keras.Model) -> bool:
    """Not where only a step shows what metrics get: one of the model's own, or outputs of a `call`.

    A model may have other outputs in training than in inference, as which it is built.
    """
    has_own_step = type(model).train_step is not keras.Model.train_step
    has_outputs = bool(getattr(model, "outputs", None))
    return has_unbuilt_metrics(model) and has_outputs and not has_own_step


def weights_of_optimizers(model: keras.Model) -> list[list[int]]:
    """Which weights each of the model's optimizers updates, by number; none where not built."""
    numbers = {id(weight): number for number, weight in enumerate(model.weights)}
    return [
        [numbers[id(weight)] for weight in trained_by(optimizer) if id(weight) in numbers]
        for optimizer in optimizers_of(model)
    ]


def build_optimizers(model: keras.Model, weights: Sequence[Sequence[int]]) -> None:
    """Makes the variables of optimizers that have none, for `weights_of_optimizers` of a model."""
    for optimizer, numbers in zip(optimizers_of(model), weights, strict=False):
        if not optimizer.built and numbers and max(numbers) < len(model.weights):
            optimizer.build([model.weights[number] for number in numbers])
    build_optimizer(model)


def build_optimizer(model: keras.Model) -> None:
    """Makes the optimizer's variables for those that the model has now."""
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
