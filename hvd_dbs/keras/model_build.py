"""Variables of models that their first batch would build."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import keras

from hvd_dbs.keras.internals import build_for, data_of_epoch, is_built, trained_by
from hvd_dbs.keras.model_optimizers import optimizers_of
from hvd_dbs.watchdog.activity import call_of_fit

_LOGGER = logging.getLogger(__name__)


def build_for_fit(model: keras.Model) -> bool:
    """Builds model and optimizer for the data of the `fit` under way, before its first step.

    Keras leaves that to the first step where a model is subclassed or has no `Input`: too late for
    weights that all ranks shall begin with, or that were saved. Changes nothing that is built.

    Args:
        model: A compiled model that `fit` has been called of; to be called by its callbacks.

    Returns:
        Whether model and optimizer have all their variables. Not so where the model is not one
        that can be called on inputs alone, such as one with a `train_step` and no `call`; its
        first step may create more.
    """
    if not is_built(model):
        fit = call_of_fit()  # Keras tells callbacks nothing of the data.
        iterator = None if fit is None else fit.f_locals.get("epoch_iterator")
        dataset = data_of_epoch(iterator)
        if dataset is None:
            return False
        try:
            build_for(model, dataset)
        except Exception as error:  # Of any type: it is the user's code that is called.
            _LOGGER.debug("the model is left to its first step to build", exc_info=error)
            return False
    build_optimizer(model)
    return True


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
