"""Random layers are off while trainings are compared: ranks draw other numbers than one process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from hvd_dbs.keras.internals import all_layers


def turn_off_random_layers(model: keras.Model) -> list[str]:
    """Makes Keras's own random layers (dropout, noise, augmentation) do nothing in training.

    Returns:
        Their names and classes, such as "dropout_1 (Dropout)".
    """
    turned_off = []
    for layer in all_layers(model, include_self=False):
        if not type(layer).__module__.startswith("keras.") or not _seeds(layer):
            continue
        rates = [name for name in ("dropout", "recurrent_dropout") if hasattr(layer, name)]
        is_cell = hasattr(layer, "state_size")
        if is_cell:
            is_random = any(getattr(layer, name) for name in rates)
            for name in rates:
                setattr(layer, name, 0.0)
        else:
            is_random = _is_active(layer) and "training" in inspect.signature(layer.call).parameters
            if is_random:
                object.__setattr__(layer, "call", _as_in_inference(layer.call))
        if is_random:
            turned_off.append(f"{layer.name} ({type(layer).__name__})")
    return turned_off


def seed_states(model: keras.Model) -> dict[str, list[int]]:
    """The states of a model's random numbers by layer; they change where numbers are drawn."""
    return {
        layer.name: [int(n) for seed in _seeds(layer) for n in seed.state.numpy()]
        for layer in all_layers(model)
        if _seeds(layer)
    }


def _seeds(layer: keras.layers.Layer) -> list[Any]:
    found = [*getattr(layer, "_seed_generators", ()), *vars(layer).values()]
    found = [one for one in found if isinstance(one, keras.random.SeedGenerator)]
    return [one for i, one in enumerate(found) if all(one is not other for other in found[:i])]


def _is_active(layer: keras.layers.Layer) -> bool:
    """Whether a layer draws numbers at all; attention layers have a rate of 0 unless given one."""
    rates = [getattr(layer, name) for name in ("rate", "stddev", "dropout") if hasattr(layer, name)]
    return not rates or any(rates)


def _as_in_inference(call: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(call)

    @functools.wraps(call)
    def called(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        bound.arguments["training"] = False
        return call(*bound.args, **bound.kwargs)

    return called
