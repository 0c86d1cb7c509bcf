"""An optimizer that applies the mean gradient of all ranks, on Keras 3."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import keras

from hvd_dbs.keras.local_variables import references_of_layers
from hvd_dbs.keras.optimizer_options import accumulate_gradients, check_options, innermost
from hvd_dbs.keras.reducing_optimizer import Reduction, is_reducing, make_reducing
from hvd_dbs.tensorflow.gradient_reducer import GradientReducer

if TYPE_CHECKING:
    from hvd_dbs.balancer import Balancer

_LOGGER = logging.getLogger(__name__)


def DistributedOptimizer(  # noqa: N802, PLR0913 (Horovod's name and arguments)
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = hvd.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = hvd.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | list[Any] | None = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    scale_local_gradients: bool = True,
    *,
    balancer: Balancer | None = None,
) -> keras.optimizers.Optimizer:
    """Makes `optimizer` apply the mean gradient of all ranks, in place.

    Gradients are reduced before clipping, weight decay, moving averages and accumulation, all of
    which Keras does in `apply`. Under the `mixed_float16` policy a `LossScaleOptimizer` wraps the
    optimizer, and gradients are reduced outside of it: all ranks skip the same steps.

    Args:
        optimizer: A Keras 3 optimizer that is not built yet. It is distributed from now on: a
            model that is trained without the other ranks needs one of its own.
        name: Name of the optimizer; None keeps its own.
        device_dense: Kept for Horovod's signature; gradients are reduced where they are.
        device_sparse: Likewise.
        compression: Horovod's compression for the way over the network.
        sparse_as_dense: Whether sparse gradients are made dense before they are reduced.
        gradient_predivide_factor: Kept for Horovod's signature; it does not change the result.
        op: `hvd.Average`, or `hvd.Sum` without a balancer: the sum over the ranks.
        backward_passes_per_step: Passes whose gradients make one update; each pass is reduced.
        average_aggregated_gradients: Whether an update has the mean of its passes, not their sum.
        num_groups: Kept for Horovod's signature: tensors travel in buckets of a size.
        groups: Likewise.
        process_set: The ranks that take part; on others the optimizer applies their own gradients.
        scale_local_gradients: Whether `register_local_var`'s gradients are divided by the ranks.
        balancer: Weighs each rank's gradient by its samples in the step; None: equal weights.

    Returns:
        The optimizer, or what wraps it. A model saved with it loads in plain Keras.

    Raises:
        TypeError: If it is not a Keras 3 optimizer, or `balancer` is no Balancer.
        ValueError: If it is distributed or built already, or an option cannot be honoured.
    """
    _check(optimizer, name)
    check_options(op, gradient_predivide_factor, num_groups, groups, balancer)
    reducer = GradientReducer(
        balancer, compression=compression, sparse_as_dense=sparse_as_dense, process_set=process_set
    )
    passes_summed = 1 if average_aggregated_gradients else backward_passes_per_step
    reduction = Reduction(reducer, op == hvd.Sum, passes_summed, scale_local_gradients)
    return _distributed(optimizer, name, backward_passes_per_step, reduction)


def PartialDistributedOptimizer(  # noqa: N802, PLR0913 (Horovod's name and arguments)
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = hvd.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = hvd.Average,
    groups: int | list[Any] | None = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    local_layers: keras.layers.Layer | Sequence[keras.layers.Layer] | None = None,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Like `DistributedOptimizer`, but each rank trains some layers by its own gradients.

    Args:
        optimizer: See `DistributedOptimizer`, as for all that is not named here.
        name: Name of the optimizer; None keeps its own.
        device_dense: Kept for Horovod's signature.
        device_sparse: Kept for Horovod's signature.
        compression: Horovod's compression for the way over the network.
        sparse_as_dense: Whether sparse gradients are made dense before they are reduced.
        gradient_predivide_factor: Kept for Horovod's signature.
        op: `hvd.Average` or `hvd.Sum`.
        groups: Kept for Horovod's signature.
        process_set: The ranks that take part.
        local_layers: A layer or several, built, whose gradients stay each rank's own. Their
            variables also belong into `BroadcastGlobalVariablesCallback(local_variables=...)`.
        scale_local_gradients: Whether those gradients are divided by the number of ranks: what a
            rank contributes to a mean.

    Raises:
        TypeError: See `DistributedOptimizer`.
        ValueError: Likewise; or if a local layer is none, or is not built.
    """
    references = references_of_layers(local_layers)
    distributed: Any = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for reference in references:
        distributed.register_local_var(reference.deref())
    return distributed


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type[keras.optimizers.Optimizer]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = hvd.Compression.none,
    legacy_opts: bool = False,
    *,
    balancer: Balancer | None = None,
    average_aggregated_gradients: bool | None = None,
) -> keras.Model:
    """Loads a saved Keras model and makes its optimizer distributed, with the state it had.

    Args:
        filepath: What `model.save` wrote, or an open `h5py.File` of it.
        custom_optimizers: Optimizer classes that Keras does not know.
        custom_objects: Other objects that Keras does not know, by name.
        compression: Horovod's compression for the way over the network.
        legacy_opts: Kept for Horovod's signature: Keras 3 has no other optimizers.
        balancer: Weighs each rank's gradient by its samples in the step; None: equal weights.
        average_aggregated_gradients: Where the optimizer makes an update of several passes:
            whether of their mean, or of their sum as `backward_passes_per_step` does by default.
            A file does not say which; None is the mean, and rank 0 logs it.

    Raises:
        ValueError: If the model was saved without an optimizer.
    """
    filepath = getattr(filepath, "filename", filepath)
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
    passes = max(one.gradient_accumulation_steps or 1 for one in innermost(optimizer))
    if passes > 1 and average_aggregated_gradients is None and hvd.rank() == 0:
        _LOGGER.warning(
            "the optimizer of %s makes an update of %d passes; of their mean, as in Keras. "
            "average_aggregated_gradients=False is their sum, True is the mean without this line.",
            filepath,
            passes,
        )
    # The model refers to this very object, and its variables hold the state.
    make_reducing(
        optimizer,
        Reduction(
            GradientReducer(balancer, compression=compression),
            passes_summed=passes if average_aggregated_gradients is False else 1,
        ),
    )
    return model


def _distributed(
    optimizer: keras.optimizers.Optimizer, name: str | None, num_passes: int, reduction: Reduction
) -> keras.optimizers.Optimizer:
    """The optimizer, or what wraps it, with gradients that are reduced and added up over passes."""
    accumulate_gradients(optimizer, num_passes)
    if keras.mixed_precision.dtype_policy().name == "mixed_float16" and not isinstance(
        optimizer, keras.optimizers.LossScaleOptimizer
    ):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    if name is not None:
        optimizer.name = name
    return make_reducing(optimizer, reduction)


def _check(optimizer: Any, name: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}; expected a "
            f"Keras 3 optimizer such as keras.optimizers.SGD(0.1)."
        )
    if is_reducing(optimizer):
        raise ValueError(
            "optimizer is distributed already: DistributedOptimizer changes the one that it is "
            "given. Give it a plain one, and each model its own."
        )
    if optimizer.built or any(one.built for one in innermost(optimizer)):
        raise ValueError(
            "optimizer is built already, for a model that it has trained. Make it distributed "
            "before the model is compiled or trained."
        )
    if not isinstance(name, str | None):
        raise TypeError(
            f"name is a {type(name).__name__}; expected text, or None. Give a balancer by its "
            f"name: DistributedOptimizer(optimizer, balancer=balancer)."
        )
