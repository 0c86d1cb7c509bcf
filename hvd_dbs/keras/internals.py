"""Every look into private parts of Keras; all other modules use its public interface.

`tests/tf/test_keras_internals.py` compares each with a public way where there is one, so that it
fails where a new version of Keras means something else by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

LOSS_REDUCTION, METRIC_REDUCTION = "reduce_weighted_values", "reduce_to_samplewise_values"
"""The functions in which all losses, and the metrics `Mean` and `Sum`, end."""


ADDED_LOSSES = "_aggregate_additional_loss"
"""The method of a model through which losses of `add_loss` go on their way to its sum."""


def all_layers(layer: keras.Layer, include_self: bool = True) -> list[Any]:
    """A layer or model and all layers within it, those that attributes hold included."""
    return list(layer._flatten_layers(include_self=include_self))


def is_built(layer: keras.Layer) -> bool:
    """Whether a layer and all layers within it have their variables."""
    return all(one.built for one in all_layers(layer))


def build_for(model: keras.Model, batch: Any) -> None:
    """Builds a model, its loss, its metrics and its optimizer, without computing anything.

    Args:
        model: A compiled model.
        batch: What its steps get; tensors, or their specifications.

    Raises:
        Exception: Of any type: the user's code is called.
    """
    model._symbolic_build(data_batch=batch)


def has_unbuilt_metrics(model: keras.Model) -> bool:
    """Whether the metrics given to `compile` have yet to make their variables."""
    metrics = model._compile_metrics
    return metrics is not None and not metrics.built


def data_of_epoch(epoch_iterator: Any) -> tf.data.Dataset | None:
    """The data set that `fit` iterates over; None where it is not known."""
    return getattr(epoch_iterator, "_distributed_dataset", None)


def data_of_validation(model: keras.Model) -> tf.data.Dataset | None:
    """The data set of the validation of `fit` that is under way; None where it is not known."""
    return data_of_epoch(getattr(model, "_eval_epoch_iterator", None))


def is_of_keras(value: Any, *parts: str) -> bool:
    """Whether a value's class is Keras's own, of one of these parts, such as "layers"."""
    return is_class_of_keras(type(value), *parts)


def is_class_of_keras(of: type, *parts: str) -> bool:
    """Whether a class is Keras's own, of one of these parts."""
    return of.__module__.startswith(tuple(f"keras.src.{part}." for part in parts))


def compiled_losses(model: keras.Model) -> list[Any]:
    """The losses given to `compile`, once the model has seen a batch; each has it as `loss`."""
    return getattr(model._compile_loss, "_flat_losses", None) or []


def is_compiled_with_xla(model: keras.Model) -> bool:
    """Whether steps are compiled with XLA, as given to `compile` or chosen by Keras."""
    return bool(model._compile_config.config["jit_compile"])


def has_step_of_keras(train_step: Any) -> bool:
    """Whether a model's `train_step` is the one of Keras."""
    return getattr(train_step, "__func__", None) is keras.Model.train_step


def predictions_of_step(model: keras.Model, x: Any) -> Any:
    """What Keras's `train_step` computes of the inputs."""
    return model(x, training=True) if model._call_has_training_arg else model(x)


def loss_of_step(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
    """The loss of Keras's `train_step`, before it is scaled."""
    return model._compute_loss(x, y, y_pred, sample_weight, training=True)


def note_loss(model: keras.Model, loss: tf.Tensor, num_samples: tf.Tensor) -> None:
    """Counts a loss in the metric that `fit` reports as `loss`."""
    model._loss_tracker.update_state(loss, sample_weight=num_samples)


def losses_of_call(layer: keras.Layer) -> list[tf.Tensor]:
    """What the last call of a layer has added, of its activity regularizer among them."""
    return list(layer._losses)


@contextmanager
def method_by(
    model: keras.Model, name: str, wrap: Callable[..., Callable[..., Any]]
) -> Iterator[None]:
    """Within it, a method of this model is another function.

    Args:
        model: Its training step is traced or run meanwhile.
        name: The method's.
        wrap: Makes the function of the method.
    """
    own = vars(model).get(name)
    setattr(model, name, wrap(getattr(model, name)))
    try:
        yield
    finally:
        delattr(model, name)
        if own is not None:
            setattr(model, name, own)


def reduction_modules() -> tuple[ModuleType, ModuleType] | None:
    """The modules that hold `LOSS_REDUCTION` and `METRIC_REDUCTION`; None in other versions."""
    from keras.src.losses import loss as losses
    from keras.src.metrics import reduction_metrics as metrics

    are_known = (
        _calls(keras.losses.Loss.__call__, losses, LOSS_REDUCTION)
        and _calls(keras.metrics.Mean.update_state, metrics, METRIC_REDUCTION)
        and hasattr(losses, "apply_mask")
    )
    return (losses, metrics) if are_known else None


def _calls(caller: Any, module: ModuleType, name: str) -> bool:
    """Whether a function looks this name up in its module."""
    return hasattr(module, name) and name in caller.__code__.co_names


def seed_generators_of(layer: keras.Layer) -> list[Any]:
    """The seed generators of a layer alone."""
    return list(layer._seed_generators)


def global_seed_generator() -> Any:
    """The generator of `keras.random` functions without a seed."""
    from keras.src.random.seed_generator import global_seed_generator as find

    return find()


def metrics_within(metric: Any) -> list[Any]:
    """The metrics that a metric, or a list of compiled ones, holds itself."""
    return list(getattr(metric, "metrics", None) or getattr(metric, "_metrics", None) or ())


def own_state(layer: keras.Layer) -> list[keras.Variable]:
    """Variables of a layer alone that are no weights to be trained."""
    return list(layer._non_trainable_variables)


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Lets a `fit` that is about to begin do so in this epoch; None: where its arguments say."""
    model._initial_epoch = epoch


def trained_by(optimizer: Any) -> list[keras.Variable]:
    """The variables that an optimizer was built for; none before."""
    return list(getattr(optimizer, "_trainable_variables", None) or ())


def num_calls_of(optimizer: Any) -> Any:
    """Calls of `apply`, also those that only gathered gradients."""
    return optimizer._iterations


def momentums_of(optimizer: keras.optimizers.RMSprop) -> list[keras.Variable | None]:
    """The momentum buffers of RMSprop."""
    return list(optimizer._momentums)
