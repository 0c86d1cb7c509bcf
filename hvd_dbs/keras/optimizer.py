"""An optimizer that applies the mean gradient of all ranks, on Keras 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_dbs.keras.ramped_learning_rate import RampedLearningRate
from hvd_dbs.tensorflow.gradient_reducer import GradientReducer

if TYPE_CHECKING:
    from hvd_dbs.balancer import Balancer

_HOROVOD_DEFAULTS: dict[str, Any] = {
    "device_dense": "",
    "device_sparse": "",
    "gradient_predivide_factor": 1.0,
    "op": hvd.Average,
    "backward_passes_per_step": 1,
    "average_aggregated_gradients": False,
    "num_groups": 0,
    "groups": None,
    "scale_local_gradients": True,
}


_IS_INNER = "_hvd_dbs_is_inner"
"""Attribute of an optimizer inside a distributed LossScaleOptimizer."""


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    *,
    balancer: Balancer | None = None,
    compression: Any = hvd.Compression.none,
    sparse_as_dense: bool = False,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    **horovod_options: Any,
) -> keras.optimizers.Optimizer:
    """Makes `optimizer` apply the mean gradient of all ranks, in place.

    The gradients are reduced before clipping, weight decay, moving averages and gradient
    accumulation, all of which Keras does in `apply`. Under the `mixed_float16` policy the
    optimizer is wrapped in a `LossScaleOptimizer` here, outside of which gradients are reduced:
    so all ranks see the same overflows and skip the same steps.

    Args:
        optimizer: A Keras 3 optimizer that is not built yet. It is distributed from now on: a
            model that is trained without the other ranks needs one of its own.
        name: Name of the optimizer; None keeps its own.
        balancer: Weighs each rank's gradient by its samples in the step; None: equal weights.
        compression: Horovod's compression for the way over the network.
        sparse_as_dense: Whether sparse gradients are made dense before they are reduced.
        process_set: The ranks that take part.
        **horovod_options: Horovod's other options, accepted with their default values.

    Returns:
        The optimizer given, with all it was told; under `mixed_float16` what wraps it. A model
        saved with it loads in plain Keras.

    Raises:
        TypeError: If it is not a Keras 3 optimizer, `balancer` is no Balancer, or an option is
            unknown.
        ValueError: If it is distributed or built already, or an option cannot be honoured.
    """
    _check(optimizer, name, horovod_options)
    if keras.mixed_precision.dtype_policy().name == "mixed_float16" and not isinstance(
        optimizer, keras.optimizers.LossScaleOptimizer
    ):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    if name is not None:
        optimizer.name = name
    reducer = GradientReducer(
        balancer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    return _distributed(optimizer, reducer)


def load_model(
    filepath: str,
    custom_optimizers: Sequence[type[keras.optimizers.Optimizer]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = hvd.Compression.none,
    legacy_opts: bool = False,
    *,
    balancer: Balancer | None = None,
) -> keras.Model:
    """Loads a saved Keras model and makes its optimizer distributed, with the state it had.

    Args:
        filepath: What `model.save` wrote.
        custom_optimizers: Optimizer classes that Keras does not know.
        custom_objects: Other objects that Keras does not know, by name.
        compression: Horovod's compression for the way over the network.
        legacy_opts: Kept for Horovod's signature.
        balancer: Weighs each rank's gradient by its samples in the step; None: equal weights.

    Raises:
        ValueError: If the model was saved without an optimizer.
    """
    objects = {one.__name__: one for one in custom_optimizers or ()}
    model = keras.saving.load_model(
        filepath, custom_objects={**objects, **(custom_objects or {})} or None
    )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(
            f"{filepath} holds no optimizer. Load it with keras.saving.load_model and compile it "
            f"with hvd.DistributedOptimizer."
        )
    # The model refers to this very object, and its variables hold the state.
    _distributed(optimizer, GradientReducer(balancer, compression=compression))
    return model


def _distributed(optimizer: Any, reducer: GradientReducer) -> Any:
    """Makes this very optimizer reduce, and follow the balancer's learning-rate factor.

    Not a new one of its configuration: that holds neither what a method has set
    (`exclude_from_weight_decay`) nor arguments and attributes that a subclass does not name in
    `get_config`, and no optimizer can be made of it where it holds a function or an unregistered
    class. Nor a copy: `copy.copy` and `copy.deepcopy` of a Keras optimizer go by the configuration
    too.
    """
    inner = getattr(optimizer, "inner_optimizer", None)  # Of a LossScaleOptimizer.
    if inner is not None:
        object.__setattr__(inner, _IS_INNER, True)
    if reducer.balancer is not None:
        ramped = optimizer if inner is None else inner
        _mix_in(RampedLearningRate, ramped)
        factor = reducer.balancer.dynamic_learning_rate.factor
        object.__setattr__(ramped, "_hvd_dbs_factor", factor)
    _mix_in(_Distributed, optimizer)
    object.__setattr__(optimizer, "_hvd_dbs_reducer", reducer)  # Nothing for Keras to track.
    return optimizer


def _mix_in(mixin: Any, optimizer: Any) -> None:
    """Puts a class before the optimizer's; of its name and module, so that Keras saves it so."""
    base = type(optimizer)
    attributes = {"__module__": base.__module__, "__doc__": base.__doc__}
    optimizer.__class__ = type(base.__name__, (mixin, base), attributes)


class _Distributed:
    """Mixed in before an optimizer class: reduces gradients, then applies them."""

    _hvd_dbs_reducer: GradientReducer

    @property
    def balancer(self) -> Balancer | None:
        """The balancer that the gradients are weighted by."""
        return self._hvd_dbs_reducer.balancer

    def apply(
        self,
        grads: list[tf.Tensor | tf.IndexedSlices | None],
        trainable_variables: list[keras.Variable] | None = None,
    ) -> None:
        """Applies the mean over all ranks of these local gradients."""
        if _inside_condition():
            raise ValueError(
                "The optimizer is asked to reduce gradients under a condition that can differ "
                "between ranks, and the ranks would wait for each other for ever. With loss "
                "scaling, wrap it the other way round: "
                "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))."
            )
        reduced = self._hvd_dbs_reducer(list(grads))
        super().apply(reduced, trainable_variables)  # type: ignore[misc]


def _inside_condition() -> bool:
    """Whether what is traced now is a branch of a condition."""
    if tf.executing_eagerly():
        return False
    return "cond" in tf.compat.v1.get_default_graph().name.rpartition("/")[2].lower()


def _check(optimizer: Any, name: Any, horovod_options: dict[str, Any]) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}; expected a "
            f"Keras 3 optimizer such as keras.optimizers.SGD(0.1)."
        )
    inner = getattr(optimizer, "inner_optimizer", None)  # Of a LossScaleOptimizer.
    if any(isinstance(one, _Distributed) or hasattr(one, _IS_INNER) for one in (optimizer, inner)):
        raise ValueError(
            "optimizer is distributed already: DistributedOptimizer changes the one that it is "
            "given. Give it a plain one, and each model its own."
        )
    if optimizer.built or getattr(inner, "built", False):
        raise ValueError(
            "optimizer is built already, for a model that it has trained. Make it distributed "
            "before the model is compiled or trained."
        )
    if not isinstance(name, str | None):
        raise TypeError(
            f"name is a {type(name).__name__}; expected text, or None. Give a balancer by its "
            f"name: DistributedOptimizer(optimizer, balancer=balancer)."
        )
    for option, value in horovod_options.items():
        if option not in _HOROVOD_DEFAULTS:
            raise TypeError(f"DistributedOptimizer has no option {option!r}.")
        if value != _HOROVOD_DEFAULTS[option]:
            hint = {
                "backward_passes_per_step": "Use the optimizer's gradient_accumulation_steps.",
                "op": "Gradients are averaged; scale the learning rate instead of summing them.",
            }.get(option, "Leave it out.")
            raise ValueError(f"{option}={value!r} is not supported on Keras 3. {hint}")
