"""Arrays in memory as a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_dbs.data.fingerprint import Fingerprint
from hvd_dbs.data.items import without_lists
from hvd_dbs.data.source import Source

_SHOWN = 8
"""Leaves whose shapes an error names."""


class Arrays(Source):
    """Arrays or tensors in any nesting of tuples, lists and dicts; lists become tuples.

    Args:
        arrays: All with the same first dimension, which counts the samples.

    Raises:
        TypeError: If one is None, ragged or sparse, or holds Python objects other than text.
        ValueError: If there is no sample, or the first dimensions differ.
    """

    def __init__(self, arrays: Any) -> None:
        for leaf in tf.nest.flatten(arrays):
            if leaf is None:
                raise TypeError(
                    "dataset source has None in the place of an array. Leave it out: (x, y) has no "
                    "sample weights."
                )
            if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
                raise TypeError(
                    f"dataset source has a {type(leaf).__name__}; expected arrays whose samples "
                    f"have the same shape. Make it dense (RaggedTensor.to_tensor, "
                    f"tf.sparse.to_dense), or give samples of different sizes as "
                    f"hvd.data.Stream(tf.data.Dataset.from_tensor_slices(...))."
                )
            is_of_objects = isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O"
            if is_of_objects and not _is_text(leaf):
                raise TypeError(
                    "dataset source has an array of Python objects (dtype=object), such as lists "
                    "of different lengths; expected numbers or text. Pad the samples to one shape "
                    "(keras.utils.pad_sequences), or give an object with __len__ and __getitem__ "
                    "as hvd.data.RandomAccess(...)."
                )
        with tf.device("CPU"):
            self._tensors = without_lists(tf.nest.map_structure(tf.convert_to_tensor, arrays))
        leaves = tf.nest.flatten(self._tensors)
        if not leaves or any(leaf.shape.rank == 0 for leaf in leaves):
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves[:_SHOWN])
            raise ValueError(
                f"dataset source has {len(leaves)} leaves, of shapes {shapes}"
                f"{', ...' if len(leaves) > _SHOWN else ''}; expected arrays whose first dimension "
                f"counts the samples. Make arrays of lists: np.array(...)."
            )
        lengths = {int(leaf.shape[0]) for leaf in leaves}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(
                f"dataset source has arrays of {sorted(lengths)} samples; expected the same "
                f"number, at least 1, in each."
            )
        self._num_samples = lengths.pop()

    @property
    def num_samples(self) -> int:
        """The first dimension."""
        return self._num_samples

    @property
    def identity(self) -> str:
        """Structure, shapes and dtypes of a sample."""
        return _text(self._tensors)

    @property
    def fingerprint(self) -> Fingerprint:
        """Values at places spread over all samples."""
        return Fingerprint.of(tf.nest.flatten(self._tensors))

    def batches(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        """Gathers the rows of each batch."""

        def gather(rows: tf.Tensor) -> Any:
            return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), self._tensors)

        return indices.map(gather, num_parallel_calls=tf.data.AUTOTUNE)


def _is_text(array: Any) -> bool:
    """Whether an array of objects holds nothing but text or bytes."""
    return all(isinstance(item, str | bytes) for item in np.ravel(array).tolist())


def _text(nested: Any) -> str:
    """The same for the same structure; dicts have an order that says nothing."""
    if isinstance(nested, Mapping):
        items = sorted((str(name), _text(part)) for name, part in nested.items())
        return f"{{{', '.join(f'{name}: {part}' for name, part in items)}}}"
    if isinstance(nested, tuple | list):
        return f"({', '.join(map(_text, nested))})"
    if tf.is_tensor(nested):
        return f"{nested.dtype.name} {list(nested.shape[1:])}"
    return type(nested).__name__
