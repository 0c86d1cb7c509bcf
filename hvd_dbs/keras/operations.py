"""Horovod's operations on values, eagerly and in a `tf.function`."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = hvd.Compression.none,
) -> Any:
    """Reduces a value over all ranks. Collective.

    Args:
        value: Anything that becomes a tensor, of the same shape on all ranks.
        name: Name of the operation, the same on all ranks.
        average: Horovod's old way to choose mean or sum.
        prescale_factor: Multiplies the value before.
        postscale_factor: Multiplies the result.
        op: `hvd.Average`, the default, or `hvd.Sum`.
        compression: Horovod's compression for the way over the network.

    Returns:
        A tensor.
    """
    return hvd.allreduce(
        tf.convert_to_tensor(value),
        average=average,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
        **_named(name),
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Puts the values of all ranks one after the other. Collective.

    Args:
        value: Anything that becomes a tensor, of the same shape on all ranks but for its rows.
        name: Name of the operation, the same on all ranks.

    Returns:
        A tensor.
    """
    return hvd.allgather(tf.convert_to_tensor(value), **_named(name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of one rank on all ranks. Collective.

    Args:
        value: Anything that becomes a tensor, of the same shape on all ranks.
        root_rank: The rank whose value all ranks get.
        name: Name of the operation, the same on all ranks.

    Returns:
        A tensor.
    """
    return hvd.broadcast(tf.convert_to_tensor(value), root_rank, **_named(name))


def reducescatter(value: Any, name: str | None = None, op: int = hvd.Average) -> Any:
    """Reduces a value over all ranks and gives each rank its part of the rows. Collective.

    Args:
        value: Anything that becomes a tensor, of the same shape on all ranks.
        name: Name of the operation, the same on all ranks.
        op: `hvd.Average` or `hvd.Sum`.

    Returns:
        A tensor.
    """
    return hvd.reducescatter(tf.convert_to_tensor(value), op=op, **_named(name))


def _named(name: str | None) -> dict[str, str]:
    return {} if name is None else {"name": name}
