"""Sums of gradients over the micro-batches of a step, with the rows that a whole batch has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

from hvd_dbs.tensorflow.dependence import mark_of_no_sample
from hvd_dbs.tensorflow.sparse_rows import Gradient, added_up, are_unique, joined, parts_of

Sum: TypeAlias = tuple[Any, ...]
"""What a loop over micro-batches carries of one part of a gradient."""


class _Part(Protocol):
    """A dense gradient, or some rows of a sparse one, and how it adds up.

    Attributes:
        shapes: Shapes that a sum may have while it grows; None: those of its start.
    """

    shapes: tuple[tf.TensorShape | None, ...]

    def values(self, part: Gradient) -> Sum:
        """The tensors of a micro-batch's part."""

    def zero(self, num: tf.Tensor | int) -> Sum:
        """The sum of no micro-batch, of so many to come."""

    def add(self, total: Sum, values: Sum, i: tf.Tensor | int) -> Sum:
        """The sum with micro-batch `i`."""

    def whole(self, total: Sum) -> Gradient:
        """The part of the gradient of the whole local batch."""


class GradientSums:
    """How the gradients of micro-batches add up to those of the local batch.

    Dense gradients are added. Rows looked up for samples are put one after the other, as one batch
    has them. Rows looked up once for a batch, as of positions, or once for each index that it has,
    are added up (`sparse_rows`).

    Args:
        gradients: Those of one micro-batch, where they are traced or computed.
        variables: What they are gradients of.
    """

    def __init__(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> None:
        self._by_gradient = [
            []
            if gradient is None
            else [_kind(part, alike, variable.shape) for part, alike in parts_of(gradient)]
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        self._parts = [part for parts in self._by_gradient for part in parts]

    @property
    def shapes(self) -> list[tuple[tf.TensorShape | None, ...]]:
        """Shapes that the sums may have while a loop runs."""
        return [part.shapes for part in self._parts]

    def values(self, gradients: Sequence[Gradient]) -> list[Sum]:
        """The tensors of a micro-batch's gradients."""
        present = [gradient for gradient in gradients if gradient is not None]
        parts = [part for gradient in present for part, _ in parts_of(gradient)]
        return [kind.values(part) for kind, part in zip(self._parts, parts, strict=True)]

    def zero(self, num: tf.Tensor | int) -> list[Sum]:
        """The sums of no micro-batch, of so many to come."""
        return [part.zero(num) for part in self._parts]

    def add(self, totals: Sequence[Sum], values: Sequence[Sum], i: tf.Tensor | int) -> list[Sum]:
        """The sums with micro-batch `i`."""
        return [
            part.add(total, value, i)
            for part, total, value in zip(self._parts, totals, values, strict=True)
        ]

    def whole(self, totals: Sequence[Sum]) -> list[Gradient]:
        """The gradients of the local batch; None where a variable has none."""
        left = iter(totals)
        return [
            joined([part.whole(next(left)) for part in parts]) if parts else None
            for parts in self._by_gradient
        ]


def _kind(part: Gradient, is_of_no_sample: bool, shape: Sequence[int]) -> _Part:
    if not isinstance(part, tf.IndexedSlices):
        return _Dense(part, shape)
    return _RowsOfBatch(part) if is_of_no_sample else _RowsOfSamples(part)


class _Dense:
    def __init__(self, like: tf.Tensor, shape: Sequence[int]) -> None:
        self._shape, self._dtype = tuple(shape), like.dtype
        self.shapes: tuple[tf.TensorShape | None, ...] = (None,)

    def values(self, part: Gradient) -> Sum:
        return (part,)

    def zero(self, num: tf.Tensor | int) -> Sum:
        return (tf.zeros(self._shape, self._dtype),)

    def add(self, total: Sum, values: Sum, i: tf.Tensor | int) -> Sum:
        return (total[0] + values[0],)

    def whole(self, total: Sum) -> Gradient:
        return total[0]


class _Rows:
    """Values, indices, and the shape of the table that they are rows of."""

    def __init__(self, like: tf.IndexedSlices) -> None:
        self._row, self._dtype = like.values.shape[1:], like.values.dtype
        self._index_dtype = like.indices.dtype

    def values(self, part: Gradient) -> Sum:
        return part.values, part.indices, part.dense_shape


class _RowsOfSamples(_Rows):
    def __init__(self, like: tf.IndexedSlices) -> None:
        super().__init__(like)
        self._are_unique = are_unique(like)
        self.shapes: tuple[tf.TensorShape | None, ...] = (None, None, tf.TensorShape([None]))

    def zero(self, num: tf.Tensor | int) -> Sum:
        return (
            tf.TensorArray(self._dtype, num, infer_shape=False, element_shape=[None, *self._row]),
            tf.TensorArray(self._index_dtype, num, infer_shape=False, element_shape=[None]),
            tf.zeros([0], tf.int32),
        )

    def add(self, total: Sum, values: Sum, i: tf.Tensor | int) -> Sum:
        rows, indices, shape = values
        return total[0].write(i, rows), total[1].write(i, indices), tf.cast(shape, tf.int32)

    def whole(self, total: Sum) -> Gradient:
        rows = tf.IndexedSlices(total[0].concat(), total[1].concat(), total[2])
        return added_up(rows) if self._are_unique else rows


class _RowsOfBatch(_Rows):
    def __init__(self, like: tf.IndexedSlices) -> None:
        super().__init__(like)
        of_any_length = tf.TensorShape([None])
        rows = tf.TensorShape([None, *self._row])
        self.shapes: tuple[tf.TensorShape | None, ...] = (rows, of_any_length, of_any_length)

    def zero(self, num: tf.Tensor | int) -> Sum:
        # One row, which is added to each of them.
        row = tf.zeros([1, *self._row], self._dtype)
        return row, tf.zeros([0], self._index_dtype), tf.zeros([0], tf.int32)

    def add(self, total: Sum, values: Sum, i: tf.Tensor | int) -> Sum:
        rows, indices, shape = values
        return total[0] + rows, indices, tf.cast(shape, tf.int32)

    def whole(self, total: Sum) -> Gradient:
        return tf.IndexedSlices(total[0], mark_of_no_sample(total[1]), total[2])
