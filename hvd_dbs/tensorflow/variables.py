"""Variables of TensorFlow and of Keras 3 alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf


def tensorflow_variable(variable: Any) -> Any:
    """What a Keras 3 variable keeps its value in; anything else as it is."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, *horovod_arguments: Any, **options: Any
) -> Any:
    """Horovod's `broadcast_variables`, which also takes the variables of Keras 3.

    Args:
        variables: Those to be set on all other ranks, such as `model.variables`.
        root_rank: The rank whose values all have then.
        *horovod_arguments: Horovod's other arguments in its order.
        **options: Horovod's options.
    """
    plain = [tensorflow_variable(variable) for variable in variables]
    return hvd.broadcast_variables(plain, root_rank, *horovod_arguments, **options)
