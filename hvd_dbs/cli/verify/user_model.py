"""The model and the samples that a user's function returns for `hvd-dbs verify --model`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.cli.verify.random_layers import turn_off_random_layers
from hvd_dbs.data.passes import Pass
from hvd_dbs.data.pipeline import as_source, make_dataset
from hvd_dbs.sampling import EpochOrder

_OPTIONS = ("map", "class_weight")
_RETURNED = "a compiled Keras model and its samples: return model, (x, y)"


@dataclass(frozen=True)
class UserModel:
    """What the user's function returns.

    Attributes:
        model: Compiled, not trained, with a plain Keras optimizer.
        data: What `balancer.dataset` reads.
        map: What each batch goes through; None: nothing.
        class_weight: As `fit` takes it.
        turned_off: Random layers, which are off for the comparison.
    """

    model: keras.Model
    data: Any
    map: Callable[..., Any] | None
    class_weight: Mapping[int, float] | None
    turned_off: tuple[str, ...]


def find_function(name: str) -> Callable[[], Any]:
    """The function called `package.module:function`, as seen from the current folder.

    Raises:
        ValueError: If there is none.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name.isidentifier():
        raise ValueError(f"{name!r} names no function; expected package.module:function.")
    if os.getcwd() not in sys.path:  # A program that pip has installed does not look there.
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{module_name} cannot be imported: {_in_a_line(error)}. Start hvd-dbs verify in the "
            f"folder that has it, or set PYTHONPATH."
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        given = "has no" if function is None else "has something else called"
        raise ValueError(f"{module_name} {given} {function_name}; expected a function.")
    found: Callable[[], Any] = function
    return found


def build(function: Callable[[], Any], seed: int) -> UserModel:
    """Calls the user's function, after setting Keras's seeds, and checks what it returns.

    Raises:
        ValueError: If it fails, or returns something else than is expected.
    """
    keras.utils.set_random_seed(seed)
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise ValueError(f"the function fails: {_in_a_line(error)}.") from error
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise ValueError(f"the function returns {_kind(returned)}; expected {_RETURNED}.")
    model, data, options = (*returned, {})[:3]
    if not isinstance(model, keras.Model):
        raise ValueError(f"the function returns {_kind(model)} first; expected {_RETURNED}.")
    if not getattr(model, "compiled", False) or model.optimizer is None:
        raise ValueError("the model is not compiled. Call model.compile in the function.")
    _check_optimizers(model)
    unknown = set(options) - set(_OPTIONS) if isinstance(options, Mapping) else {repr(options)}
    if unknown:
        raise ValueError(
            f"the function returns the options {', '.join(sorted(map(str, unknown)))}; expected a "
            f"dict with none but {' and '.join(_OPTIONS)}."
        )
    turned_off = turn_off_random_layers(model)
    return UserModel(
        model, data, options.get("map"), options.get("class_weight"), tuple(turned_off)
    )


def optimizers_of(model: keras.Model) -> dict[str, Any]:
    """The optimizers of a model by name: the compiled one, and those that are its attributes."""
    found = {"optimizer": model.optimizer}
    for name, value in vars(model).items():
        values = value.items() if isinstance(value, Mapping) else [("", value)]
        if isinstance(value, list | tuple):
            values = [(f"[{i}]", one) for i, one in enumerate(value)]
        for key, one in values:
            if isinstance(one, keras.optimizers.Optimizer):
                found[f"{name}{key}"] = one
    return {name: one for name, one in found.items() if _is_first(one, name, found)}


def samples_of(data: Any, global_batch_size: int, wanted: int, seed: int) -> tuple[Any, int]:
    """Some samples out of a source, as tensors; the same on all ranks.

    Args:
        data: What `balancer.dataset` reads.
        global_batch_size: Samples of a step.
        wanted: How many samples, at most.
        seed: Which ones, where they can be read in any order.

    Returns:
        The samples, and how many there are.
    """
    source = as_source(data, global_batch_size)
    count = min(wanted, source.num_samples)
    numbers = np.arange(count)
    if not source.has_own_order:
        numbers = EpochOrder(source.num_samples, seed, 0).indices(0, count)
    with tf.device("CPU"):
        return next(iter(make_dataset(source, _OneBatch(numbers)))), count


def take(samples: Any, numbers: NDArray[np.int64] | tf.Tensor) -> Any:
    """The samples of these numbers."""
    with tf.device("CPU"):
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, numbers), samples)


class _OneBatch:
    """All samples in one step."""

    num_steps = 1
    goes_straight_on = True

    def __init__(self, numbers: NDArray[np.int64]) -> None:
        self._numbers = numbers

    def begin_pass(self) -> Pass:
        def steps() -> Iterator[NDArray[np.int64]]:
            yield self._numbers

        return Pass(0, steps())


def _check_optimizers(model: keras.Model) -> None:
    for name, optimizer in optimizers_of(model).items():
        if hasattr(optimizer, "balancer"):
            raise ValueError(
                f"{name} is a hvd.DistributedOptimizer. Return the model with plain Keras "
                f"optimizers: one process trains it too, and verify makes them distributed itself."
            )
        if optimizer.built:
            raise ValueError(
                f"{name} is built, for a model that it has trained or that was loaded. Compile the "
                f"model with a new optimizer in the function."
            )


def _is_first(one: Any, name: str, found: Mapping[str, Any]) -> bool:
    """Whether an optimizer has no earlier name, and is not inside a LossScaleOptimizer."""
    others = list(found.items())
    earlier = others[: list(found).index(name)]
    wrapped = any(getattr(other, "inner_optimizer", None) is one for _, other in others)
    return one is not None and not wrapped and all(other is not one for _, other in earlier)


def _in_a_line(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _kind(given: Any) -> str:
    if isinstance(given, tuple):
        return f"a tuple of {len(given)}"
    return "None" if given is None else f"a {type(given).__name__}"
