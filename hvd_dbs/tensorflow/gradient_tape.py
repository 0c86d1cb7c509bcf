"""A gradient tape whose gradients are the weighted means over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_dbs.ops.autograph import do_not_convert
from hvd_dbs.tensorflow.gradient_reducer import GradientReducer, mark_averaged
from hvd_dbs.tensorflow.variables import tensorflow_variable

_SCOPE = "hvd_dbs.tape/"
"""With the slash: the same in every name scope that a caller is in."""


@do_not_convert
def DistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: tf.GradientTape,
    *horovod_arguments: Any,
    weight: tf.Tensor | float | None = None,
    **options: Any,
) -> tf.GradientTape | WeightedGradientTape:
    """Wraps a tape so that its gradients are averaged over all ranks.

    Optimizers with a balancer average themselves, and refuse gradients averaged with equal weights.

    Args:
        gradtape: A tape of TensorFlow's.
        *horovod_arguments: Horovod's arguments in its order; only without a weight.
        weight: What this rank's gradients count for, not negative: the samples, or valid elements,
            over which its loss is a mean. None: Horovod's own tape, equal weights.
        **options: With a weight: `total_weight` (see `weighted_allreduce`), `compression`,
            `sparse_as_dense`, `process_set`. Without: Horovod's options.

    Returns:
        A tape.

    Raises:
        TypeError: If an option is unknown, or a balancer is given: optimizers take one.

    Example:
        >>> with tf.GradientTape() as tape:  # doctest: +SKIP
        ...     loss = tf.reduce_mean(loss_of_each(images, labels))
        >>> tape = hvd.DistributedGradientTape(tape, weight=len(images))  # doctest: +SKIP
        >>> gradients = tape.gradient(loss, model.trainable_variables)  # doctest: +SKIP
    """
    if "balancer" in options:
        raise TypeError(
            "DistributedGradientTape takes no balancer. Give it to the optimizer, "
            "hvd_dbs.keras.DistributedOptimizer(optimizer, balancer=balancer), with TensorFlow's "
            "own tape; or give this tape weight=, the samples of this rank in the step."
        )
    if weight is None:
        tape = hvd.DistributedGradientTape(gradtape, *horovod_arguments, **options)
        return _for_keras_variables(tape)
    if horovod_arguments:
        raise TypeError("DistributedGradientTape with a weight takes its options by name.")
    return WeightedGradientTape(gradtape, weight, **options)


@do_not_convert
def PartialDistributedGradientTape(  # noqa: N802, PLR0913 (Horovod's name and arguments)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = hvd.Compression.none,
    sparse_as_dense: bool = False,
    op: int = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[Any] | None = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Wraps a tape so that gradients are averaged over all ranks, but for those of some layers.

    Args:
        gradtape: A tape of TensorFlow's.
        device_dense: See Horovod's `DistributedGradientTape`, as for all that is not named here.
        device_sparse: Likewise.
        compression: Horovod's compression for the way over the network.
        sparse_as_dense: Whether sparse gradients are made dense before they are reduced.
        op: How gradients of ranks are combined.
        gradient_predivide_factor: Splits the division of an average in two.
        num_groups: Groups of gradients that are reduced together.
        groups: The number of groups, or the variables of each.
        process_set: The ranks that take part.
        local_layers: A layer of Keras or several, built, whose gradients stay each rank's own.
        scale_local_gradients: Whether those are divided by the number of ranks.

    Returns:
        Horovod's tape, for variables of Keras 3 too.

    Raises:
        ValueError: If a local layer has no variables yet.
    """
    local_variables = _variables_of(local_layers)
    tape = _for_keras_variables(
        hvd.DistributedGradientTape(
            gradtape,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            num_groups,
            groups,
            process_set,
            scale_local_gradients,
        )
    )
    for variable in local_variables:
        tape.register_local_source(variable)
    return tape


def _variables_of(local_layers: Any) -> list[Any]:
    """The trainable variables of a layer or several, or of None."""
    layers = local_layers if isinstance(local_layers, (list, tuple, set)) else [local_layers]
    layers = [layer for layer in layers if layer is not None]
    for layer in layers:
        if not getattr(layer, "built", True):
            raise ValueError(
                f"The local layer {layer.name!r} is not built, so its variables are not known. "
                f"Build the model first: an Input layer, or model.build(shape)."
            )
    return [variable for layer in layers for variable in layer.trainable_weights]


def _for_keras_variables(tape: tf.GradientTape) -> tf.GradientTape:
    """A tape of Horovod's that takes the variables of Keras 3, and names gradients by position.

    Horovod matches gradients by name, which holds those of layers; Keras counts layers, so names
    differ where one rank has built another model before.

    Its methods are replaced and its class is not: Horovod's `super(self.__class__, self)` would
    never end in a class made of it.
    """

    def with_plain_sources(method: Callable[..., Any]) -> Callable[..., Any]:
        @do_not_convert
        def call(target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
            plain = tf.nest.map_structure(tensorflow_variable, sources)
            return method(target, plain, *arguments, **options)

        return call

    register, reduce = tape.register_local_source, tape._allreduce_grads

    def reduce_named(gradients: Any, *arguments: Any) -> Any:
        if tf.executing_eagerly():
            return mark_averaged(reduce(gradients, *arguments))
        with tf.name_scope(_SCOPE):
            named = [
                None if gradient is None else _named(gradient, f"{i}")
                for i, gradient in enumerate(gradients)
            ]
            return mark_averaged(reduce(named, *arguments))

    tape._allreduce_grads = reduce_named
    # First, since it calls `gradient` of the tape.
    local_and_global = with_plain_sources(tape.get_local_and_global_gradients)

    @do_not_convert
    def with_sources_as_given(target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        given = {tensorflow_variable(source).ref(): source for source in sources}
        return tuple(
            [(given[source.ref()], gradient) for source, gradient in pairs]
            for pairs in local_and_global(target, sources, *arguments, **options)
        )

    tape.get_local_and_global_gradients = with_sources_as_given
    tape.gradient = with_plain_sources(tape.gradient)
    tape.register_local_source = lambda source: register(tensorflow_variable(source))
    return tape


def _named(gradient: Any, name: str) -> Any:
    return tf.nest.map_structure(partial(tf.identity, name=name), gradient, expand_composites=True)


class WeightedGradientTape:
    """A tape of TensorFlow's, but for `gradient`; made by `DistributedGradientTape`."""

    def __init__(
        self,
        tape: tf.GradientTape,
        weight: tf.Tensor | float,
        *,
        total_weight: tf.Tensor | float | None = None,
        compression: Any = hvd.Compression.none,
        sparse_as_dense: bool = False,
        process_set: hvd.ProcessSet = hvd.global_process_set,
    ) -> None:
        self._tape = tape
        self._weight = weight
        self._total_weight = total_weight
        self._reducer = GradientReducer(
            compression=compression, sparse_as_dense=sparse_as_dense, process_set=process_set
        )

    def __enter__(self) -> WeightedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tape.__exit__(kind, error, traceback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @do_not_convert
    def gradient(self, target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        """The weighted means of `tf.GradientTape.gradient`, in the structure of `sources`."""
        gradients = self._tape.gradient(target, sources, *arguments, **options)
        flat = tf.nest.flatten(gradients)  # IndexedSlices and None are leaves of it.
        reduced = self._reducer.reduce(flat, self._weight, self._total_weight)
        return tf.nest.pack_sequence_as(gradients, reduced)
