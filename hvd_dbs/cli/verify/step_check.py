"""What a model's first step is on all ranks and in one process, and what the model is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.cli.verify.causes import Model, Step
from hvd_dbs.cli.verify.model_training import Weights, unit_roundoff
from hvd_dbs.cli.verify.probe import (
    Look,
    first_difference,
    label,
    layer_names,
    look_alone,
    look_balanced,
)
from hvd_dbs.cli.verify.user_model import UserModel, build, optimizers_of, take
from hvd_dbs.comm.agreement import allgather_json
from hvd_dbs.comm.collective import Collective
from hvd_dbs.keras.internals import all_layers
from hvd_dbs.tensorflow import Sum, allreduce

_TOLERANCE = 1e-3
_ROUNDING = 2e-5


def check_step(
    collective: Collective,
    function: Callable[[], Any],
    user: UserModel,
    seed: int,
    batch: Any,
    start: Weights,
) -> Step | None:
    """Looks at one step. Collective.

    Args:
        collective: The job.
        function: The user's.
        user: What it has returned before; layers have the names that they have in it.
        seed: Of what it builds.
        batch: The samples of a global batch.
        start: Weights to begin with.

    Returns:
        The step; None where plain Keras cannot make it outside of a graph.
    """
    whole = _agreed(collective, lambda: look_alone(build(function, seed), batch, start))
    if whole is None:
        return None
    ratios = tuple(float(2 + rank % 2) for rank in range(collective.size))
    part, sizes = look_balanced(build(function, seed), batch, ratios, start)
    first = sum(sizes[: collective.rank])
    rows = np.arange(first, first + sizes[collective.rank])
    plain = _agreed(collective, lambda: look_alone(build(function, seed), take(batch, rows), start))
    if plain is None:
        return None
    roundoff = unit_roundoff(user.model)
    tolerance = max(_TOLERANCE, 20 * roundoff)
    changed = first_difference(whole, part, rows, tolerance)
    calls = allgather_json(collective, len(whole.layers) if changed is None else changed)
    name, call = None, min(calls)
    if call < len(whole.layers):
        place = whole.layers[call][0]
        known = layer_names(user.model)
        # Layers that are made while a model is built change their places.
        name = (known if _kinds(known) == _kinds(whole.names) else whole.names)[place]
    return _step(collective, whole, part, plain, sizes, name, roundoff)


def facts_of(user: UserModel, drawn: Sequence[str], batch_means: Sequence[str]) -> Model:
    """What a model is made of.

    Args:
        user: The model.
        drawn: Layers that have drawn random numbers.
        batch_means: Metrics that differ and count batches.
    """
    model = user.model
    policies = {layer.dtype_policy.name for layer in all_layers(model)}
    return Model(
        own_statistics=[
            label(layer)
            for layer in all_layers(model)
            if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
        ],
        has_own_step=type(model).train_step is not keras.Model.train_step,
        drawn=drawn,
        batch_means=batch_means,
        half_precision=", ".join(sorted(policies)) if unit_roundoff(model) else "",
        optimizers=class_names(optimizers_of(model).values()),
    )


def class_names(optimizers: Any) -> list[str]:
    """Classes, of LossScaleOptimizers those inside of them."""
    return [type(getattr(one, "inner_optimizer", one)).__name__ for one in optimizers]


def _step(
    collective: Collective,
    whole: Look,
    part: Look,
    plain: Look,
    batch_sizes: Sequence[int],
    changed_layer: str | None,
    roundoff: float,
) -> Step:
    """Puts the looks of all ranks together. Collective."""
    row = [part.loss, plain.loss, part.gradient.size, plain.gradient.size]
    losses, plain_losses, *counts = zip(*allgather_json(collective, row), strict=True)
    total = sum(batch_sizes)
    mean = summed = 0.0
    if {count for one in counts for count in one} == {whole.gradient.size}:
        weighted = batch_sizes[collective.rank] / total * part.gradient
        mean = _apart(_sum(weighted), whole.gradient)
        summed = _apart(_sum(plain.gradient), whole.gradient)
    return Step(
        changed_layer=changed_layer,
        whole_loss=whole.loss,
        mean_loss=sum(n * loss for n, loss in zip(batch_sizes, losses, strict=True)) / total,
        part_losses=plain_losses,
        batch_sizes=batch_sizes,
        rounding=max(_ROUNDING, 4 * roundoff),
        gradient=mean,
        sum_gradient=summed,
    )


def _kinds(names: Sequence[str]) -> list[str]:
    return [name.partition(" ")[2] for name in names]


def _agreed(collective: Collective, look: Callable[[], Look]) -> Look | None:
    """A look of one process, if it can be had on all ranks. Collective."""
    found: Look | None = None
    try:
        found = look()
    except Exception:  # Whatever it is, the other ranks must not wait for this one.
        found = None
    return found if all(allgather_json(collective, found is not None)) else None


def _sum(gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    with tf.device("CPU"):
        summed = allreduce(tf.constant(gradient), op=Sum, name="hvd_dbs.verify.gradient")
    return np.asarray(summed.numpy())


def _apart(given: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(given - expected)) / norm if norm > 0 else 0.0
