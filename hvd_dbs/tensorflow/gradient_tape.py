"""A gradient tape whose gradients are the weighted means over all ranks."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_dbs.tensorflow.gradient_reducer import GradientReducer
from hvd_dbs.tensorflow.variables import tensorflow_variable


def DistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: tf.GradientTape,
    *horovod_arguments: Any,
    weight: tf.Tensor | float | None = None,
    **options: Any,
) -> tf.GradientTape | WeightedGradientTape:
    """Wraps a tape so that its gradients are averaged over all ranks.

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


def _for_keras_variables(tape: tf.GradientTape) -> tf.GradientTape:
    """A tape of Horovod's that takes the variables of Keras 3, too.

    Its methods are replaced and its class is not: Horovod's `super(self.__class__, self)` would
    never end in a class made of it.
    """
    gradient, register_local_source = tape.gradient, tape.register_local_source

    def gradient_of(target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        plain = tf.nest.map_structure(tensorflow_variable, sources)
        return gradient(target, plain, *arguments, **options)

    tape.gradient = gradient_of
    tape.register_local_source = lambda source: register_local_source(tensorflow_variable(source))
    return tape


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

    def gradient(self, target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        """The weighted means of `tf.GradientTape.gradient`, in the structure of `sources`."""
        gradients = self._tape.gradient(target, sources, *arguments, **options)
        flat = tf.nest.flatten(gradients)  # IndexedSlices and None are leaves of it.
        reduced = self._reducer.reduce(flat, self._weight, self._total_weight)
        return tf.nest.pack_sequence_as(gradients, reduced)
