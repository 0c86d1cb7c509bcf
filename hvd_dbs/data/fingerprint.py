"""A few values of a data set in memory, by which ranks notice that they were given other ones."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

_MOST_ROWS = 16
_MOST_COLUMNS = 16
_EXACT = (0.0, 0.0)
_OF_UNLIKE_FEATURES = (0.02, 1e-5)
_OF_PICTURES = (0.0, 0.02)
"""What may differ, of the largest value at a place in the samples, and of that of the array."""


@dataclass(frozen=True)
class Fingerprint:
    """Values at the same places of the same samples of each array, on every rank.

    What has been computed or decoded on each rank may differ in last bits, and pictures by a grey
    level or two. So numbers with a fraction, and integers of one byte, are compared within 2 % of
    the largest value: much more than other machines and libraries make of the same data, much
    less than that by which samples differ. Where a sample has one axis, its values may be
    features of different size, so that is the largest one at the same place. Other integers and
    text are the same or not.

    Attributes:
        names: What each array is, for humans.
        samples: Numbers of the samples, shape `[rows]`.
        arrays: Values of each array, of text a checksum; float64 of shape `[rows, columns]`.
        tolerances: What may differ in each array.
    """

    names: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    arrays: tuple[NDArray[np.float64], ...] = ()
    tolerances: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, tensors: Sequence[tf.Tensor]) -> Fingerprint:
        """Of arrays with the same first dimension; reads these values and no others."""
        num_samples = int(tensors[0].shape[0])
        rows = np.unique(np.linspace(0, num_samples - 1, _MOST_ROWS).astype(np.int64))
        names = [
            f"array {i} of {len(tensors)} ({tensor.dtype.name} of shape {tuple(tensor.shape)})"
            for i, tensor in enumerate(tensors)
        ]
        return cls(
            tuple(names),
            tuple(rows.tolist()),
            tuple(_values(tensor, rows) for tensor in tensors),
            tuple(map(_tolerance, tensors)),
        )

    @property
    def values(self) -> NDArray[np.float64]:
        """All values; as many on all ranks whose arrays have the same shapes."""
        return np.concatenate([[], *(array.ravel() for array in self.arrays)])

    def require_like(self, values: NDArray[np.float64]) -> None:
        """Compares with another rank's values.

        Args:
            values: Rank 0's `values`, of arrays of the same shapes and types.

        Raises:
            ValueError: If they are of other samples.
        """
        begin = 0
        for name, mine, parts in zip(self.names, self.arrays, self.tolerances, strict=True):
            other = values[begin : begin + mine.size].reshape(mine.shape)
            begin += mine.size
            rows = np.flatnonzero((~_is_like(mine, other, *parts)).any(axis=1))
            if len(rows):
                raise ValueError(
                    f"sample {self.samples[rows[0]]} is another one than on rank 0, in {name}, and "
                    f"so are {len(rows)} of {len(mine)} samples compared. Every rank gives "
                    f"balancer.dataset the whole data set, in the same order, and is served its "
                    f"part of it: no shard such as x[rank::size], no order of its own. What is to "
                    f"differ by chance, such as augmentation, comes after it, in dataset.map."
                )


def _values(tensor: tf.Tensor, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    shape = tuple(tensor.shape)[1:]
    size = int(np.prod(shape, dtype=np.int64))
    # Spread over the sample, but at no regular distance, which could always meet the same border.
    spread = np.arange(min(size, _MOST_COLUMNS)) * 0.6180339887498949 % 1.0
    columns = np.unravel_index(np.sort((spread * size).astype(np.int64)), shape) if shape else ()
    places = [rows[:, None], *(column[None, :] for column in columns)]
    wanted = np.stack(np.broadcast_arrays(*places), axis=-1)
    dtype = tensor.dtype
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_complex
    if not is_number and dtype not in (tf.bool, tf.string):
        return np.zeros((len(rows), 0))  # Quantized numbers and the like are not compared.
    with tf.device("CPU"):
        found = tf.gather_nd(tensor, wanted).numpy()
    if dtype == tf.string:
        return np.vectorize(zlib.crc32, otypes=[np.float64])(found)
    return (np.abs(found) if dtype.is_complex else found).astype(np.float64)


def _tolerance(tensor: tf.Tensor) -> tuple[float, float]:
    dtype = tensor.dtype
    if dtype in (tf.bool, tf.string) or (dtype.is_integer and dtype.size > 1):
        return _EXACT
    return _OF_PICTURES if tensor.shape.rank > 2 else _OF_UNLIKE_FEATURES


def _is_like(
    mine: NDArray[np.float64], other: NDArray[np.float64], of_place: float, of_array: float
) -> NDArray[np.bool_]:
    is_same = (mine == other) | (np.isnan(mine) & np.isnan(other))
    if not mine.size:
        return is_same
    both = np.abs(np.concatenate([mine, other]))
    both[~np.isfinite(both)] = 0.0
    allowed = of_place * both.max(axis=0) + of_array * both.max()
    with np.errstate(invalid="ignore", over="ignore"):
        return is_same | (np.abs(mine - other) <= allowed)
