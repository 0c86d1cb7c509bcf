"""Whether all ranks train the same model."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.comm.collective import Collective

_VALUES = 64
"""Values that are compared of each variable: enough that two random starts never look alike."""

_TOLERANCE = 1e-3
"""Of a variable's size. What a step's rounding differs by between devices is a thousandth of it."""

_COMPARED = ("float32", "float64", "int32", "int64")
"""Types of what is compared; whole numbers exactly, as of a layer that counts its steps."""


def difference_from_rank_0(
    collective: Collective, variables: Sequence[keras.Variable]
) -> str | None:
    """Compares this rank's variables with rank 0's, by a few values of each. Collective.

    Args:
        collective: The job.
        variables: What all ranks should have alike.

    Returns:
        What differs; None where nothing does, or where values are no numbers.
    """
    compared = [v for v in variables if v.dtype in _COMPARED and _size(v) > 0]
    shapes = ", ".join(f"{v.name} {tuple(v.shape)}" for v in compared)
    rows = [_some_values(variable) for variable in compared]
    mine = np.concatenate([*rows, np.zeros(0)])
    sizes = collective.allgather(np.array([mine.size]))[:, 0]
    if np.any(sizes != sizes[0]):
        return f"its variables are {shapes}, others than on another rank"
    theirs = np.split(collective.broadcast(mine), np.cumsum([row.size for row in rows]))
    for variable, ours, others in zip(compared, rows, theirs, strict=False):
        size = np.sqrt(max(np.mean(ours**2), np.mean(others**2)))
        off = np.max(np.abs(ours - others))
        if off > (_TOLERANCE * size if "float" in variable.dtype else 0):
            return f"{variable.path} is off by {off:.2g}, where its values are of size {size:.2g}"
    return None


def _size(variable: keras.Variable) -> int:
    return int(np.prod(variable.shape))


def _some_values(variable: keras.Variable) -> NDArray[np.float64]:
    """Values spread over the whole variable."""
    values = tf.reshape(variable.value, [-1])
    some = values[:: -(-_size(variable) // _VALUES)]
    return np.asarray(some.numpy(), dtype=np.float64)
