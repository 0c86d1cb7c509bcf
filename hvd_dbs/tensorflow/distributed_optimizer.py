"""Horovod's wrapper of an optimizer, where it does what it says."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any, *arguments: Any, **options: Any
) -> Any:
    """Makes an optimizer of tf_keras or of TensorFlow 1 apply the mean gradient of all ranks.

    Args:
        optimizer: The optimizer.
        *arguments: Horovod's arguments in its order.
        **options: Horovod's options.

    Returns:
        Horovod's wrapper of the optimizer.

    Raises:
        TypeError: If it is a Keras 3 optimizer. Horovod's wrapper would reduce nothing, and would
            not say so: the ranks would train apart.
    """
    # Told by what it has: this package does not need Keras.
    is_keras = any(base.__module__.split(".")[0] == "keras" for base in type(optimizer).__mro__)
    if is_keras and hasattr(optimizer, "apply"):
        raise TypeError(
            f"optimizer is {type(optimizer).__name__} of Keras 3, whose gradients Horovod's "
            f"wrapper does not reduce. Use hvd_dbs.keras.DistributedOptimizer, or in a loop of "
            f"your own DistributedGradientTape."
        )
    return hvd.DistributedOptimizer(optimizer, *arguments, **options)
