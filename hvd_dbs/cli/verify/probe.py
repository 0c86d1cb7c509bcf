"""Looks into one step: what layers, loss and gradients are in one process and on all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
from hvd_dbs.balancing import strategies
from hvd_dbs.cli.verify.model_training import (
    Weights,
    callbacks,
    distribute,
    quiet,
    set_weights,
    values_of,
)
from hvd_dbs.cli.verify.user_model import UserModel, optimizers_of
from hvd_dbs.keras.internals import all_layers, is_built
from hvd_dbs.keras.model_build import build_for_data

Arrays = list[NDArray[np.float64]]


@dataclass
class Look:
    """What was seen of one step.

    Attributes:
        layers: Places in `layer_names` and outputs, in the order in which the calls ended.
        names: All layers, by place.
        losses: What the model's `compute_loss` returned.
        gradients: What optimizers were given, one flat array.
    """

    layers: list[tuple[int, Arrays]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    gradients: list[NDArray[np.float64]] = field(default_factory=list)

    @property
    def gradient(self) -> NDArray[np.float64]:
        """All gradients of the step, shape `[n]`."""
        return np.concatenate([np.zeros(0), *self.gradients])

    @property
    def loss(self) -> float:
        """The first loss; NaN where the model's step computes it otherwise."""
        return self.losses[0] if self.losses else float("nan")


def layer_names(model: keras.Model) -> list[str]:
    """All layers of a model, such as "dense (Dense)"; a second model like it has other names."""
    return [label(layer) for layer in all_layers(model, include_self=False)]


def label(layer: keras.layers.Layer) -> str:
    """Name and class of a layer."""
    return f"{layer.name} ({type(layer).__name__})"


def first_weights(user: UserModel, samples: Any) -> tuple[Weights, list[str]]:
    """The weights that a model has before it is trained, and their names.

    Where only a step can build it, one with gradients of zero does. None if that fails too.
    """
    model = user.model
    batches = tf.data.Dataset.from_tensor_slices(samples).batch(2)
    build_for_data(model, batches if user.map is None else batches.map(user.map))
    start = values_of(model)
    if not is_built(model):
        try:
            _look(user, batches.take(1))
        except Exception:  # Training it in one process shows the error, or works.
            return start, [one.path for one in model.weights]
        if len(model.weights) != len(start):
            start = values_of(model)
    return start, [one.path for one in model.weights]


def look_alone(user: UserModel, batch: Any, start: Weights) -> Look:
    """One step of one process.

    Args:
        user: A model that has not been trained.
        batch: Its samples.
        start: Weights to begin with.
    """
    set_weights(user.model, start)
    return _look(user, tf.data.Dataset.from_tensors(batch))


def look_balanced(
    user: UserModel, batch: Any, ratios: tuple[float, ...], start: Weights
) -> tuple[Look, tuple[int, ...]]:
    """One step of all ranks. Collective.

    Args:
        user: A model that has not been trained; its optimizers are made distributed.
        batch: A global batch.
        ratios: Of the ranks' local batch sizes.
        start: Weights to begin with.

    Returns:
        What was seen on this rank, and the local batch sizes. Ranks have consecutive samples.
    """
    set_weights(user.model, start)
    rows = int(tf.nest.flatten(batch)[0].shape[0])
    balancer = hvd.Balancer(rows, strategies.static(list(ratios)))
    dataset = balancer.dataset(batch)
    distribute(user.model, balancer)
    look = _look(user, dataset, callbacks=callbacks(balancer))
    return look, balancer.plan.batch_sizes


def first_difference(
    whole: Look, part: Look, rows: NDArray[np.int64], tolerance: float
) -> int | None:
    """The first layer whose output for a sample depends on the ranks' other samples.

    Args:
        whole: Of one process, with all samples.
        part: Of this rank.
        rows: The numbers of this rank's samples among all.
        tolerance: Difference as a part of the largest output that rounding may explain.

    Returns:
        The place of that call in `Look.layers`; None: there is none, or nothing can be compared.
    """
    if [place for place, _ in whole.layers] != [place for place, _ in part.layers]:
        return None
    for call, ((_, of_all), (_, own)) in enumerate(zip(whole.layers, part.layers, strict=True)):
        for all_rows, own_rows in zip(of_all, own, strict=True):
            if all_rows.shape[:1] + own_rows.shape[1:] != all_rows.shape or not own_rows.ndim:
                continue  # Not one value or more for each sample.
            if len(own_rows) != len(rows) or len(all_rows) <= rows[-1]:
                continue
            expected = all_rows[rows]
            allowed = tolerance * np.max(np.abs(expected), initial=1e-3)
            if not np.max(np.abs(expected - own_rows), initial=0.0) <= allowed:
                return call
    return None


def _look(user: UserModel, dataset: tf.data.Dataset, **options: Any) -> Look:
    """Trains one step eagerly, with gradients of zero, and looks at what passes."""
    model, look = user.model, Look()
    model.run_eagerly = True
    model.jit_compile = False
    model.steps_per_execution = 1
    if user.map is not None:
        dataset = dataset.map(user.map)
    with _replaced(*_watched(model, look)), quiet():
        model.fit(
            dataset, verbose=0, shuffle=False, class_weight=user.class_weight, epochs=1, **options
        )
    return look


Replacement = tuple[Any, str, Callable[..., Any]]


def _watched(model: keras.Model, look: Look) -> list[Replacement]:
    """What to replace in a model so that all is seen."""

    def with_output(place: int, layer: keras.layers.Layer) -> Callable[..., Any]:
        call = layer.call

        @functools.wraps(call)
        def called(*arguments: Any, **options: Any) -> Any:
            outputs = call(*arguments, **options)
            values = [_values(one) for one in tf.nest.flatten(outputs) if _is_known(one)]
            if values:
                look.layers.append((place, values))
            return outputs

        return called

    def with_gradients(optimizer: Any) -> Callable[..., Any]:
        apply = optimizer.apply

        @functools.wraps(apply)
        def applied(grads: Any, trainable_variables: Any = None) -> Any:
            for gradient in grads:
                if gradient is not None:
                    look.gradients.append(_values(tf.convert_to_tensor(gradient)).ravel())
            nothing = [None if gradient is None else _zeros(gradient) for gradient in grads]
            return apply(nothing, trainable_variables)

        return applied

    compute_loss = model.compute_loss

    @functools.wraps(compute_loss)
    def computed(*arguments: Any, **options: Any) -> Any:
        loss = compute_loss(*arguments, **options)
        if _is_known(loss):
            look.losses.append(float(loss))
        return loss

    look.names = layer_names(model)
    layers = list(enumerate(all_layers(model, include_self=False)))
    found = [(layer, "call", with_output(place, layer)) for place, layer in layers]
    found += [(one, "apply", with_gradients(one)) for one in optimizers_of(model).values()]
    return [*found, (model, "compute_loss", computed)]


@contextmanager
def _replaced(*replacements: Replacement) -> Iterator[None]:
    """Replaces methods of objects for a while, without Keras's tracking of attributes."""
    before = [(one, name, vars(one).get(name)) for one, name, _ in replacements]
    for one, name, method in replacements:
        object.__setattr__(one, name, method)
    try:
        yield
    finally:
        for one, name, former in before:
            if former is None:
                object.__delattr__(one, name)
            else:
                object.__setattr__(one, name, former)


def _is_known(tensor: Any) -> bool:
    return tf.is_tensor(tensor) and hasattr(tensor, "numpy") and tf.executing_eagerly()


def _values(tensor: tf.Tensor) -> NDArray[np.float64]:
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        return np.zeros(0)
    return np.asarray(tf.cast(tensor, tf.float64).numpy())


def _zeros(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.zeros_like(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.zeros_like(gradient)
