"""Rows of sparse gradients that do not come from samples.

The gradient of an embedding is a list of rows and their indices, a row for each look-up. Optimizers
that are not linear, such as Adam, give another result where rows of one index are added up before,
so ranks must put together the very rows that one process has:

- Rows looked up for samples, such as tokens, belong to samples: one process has those of all ranks,
  one after the other.
- Rows looked up once for a whole batch, such as positions, exist once in one process, where their
  gradients are sums over the batch: the ranks' rows are added up, index by index.
- Rows looked up once for each index that a batch has (`tf.unique`), such as those of a sparse
  input, exist once in one process, too: rows of several ranks with the same index are added up.

Which is which is read off the graph: indices of the second kind depend on no sample, nor on how
many there are; those of the third come from `tf.unique`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from hvd_dbs.tensorflow.dependence import depends_on_samples

Gradient: TypeAlias = Any  # A tensor, IndexedSlices or None.

_UNIQUE = {
    ("Unique", 0),
    ("UniqueV2", 0),
    ("UniqueWithCounts", 0),
    ("UniqueWithCountsV2", 0),
    ("SparseSegmentMeanGradV2", 1),
    ("SparseSegmentSqrtNGradV2", 1),
    ("SparseSegmentSumGradV2", 1),
}
"""Operations, and which of their results has each index once."""


def reduce_rows(
    gradients: Sequence[Gradient],
    size: int | tf.Tensor,
    reduce: Callable[[list[Gradient]], list[Gradient]],
) -> list[Gradient]:
    """Reduces gradients so that sparse ones have the rows that one process has.

    Args:
        gradients: This rank's.
        size: Number of ranks that take part, a scalar.
        reduce: Reduces gradients over all ranks; puts rows of sparse ones one after the other.
    """
    parts = [parts_of(gradient) for gradient in gradients]
    sent: list[Gradient] = []
    for of_gradient in parts:
        for part, is_shared in of_gradient:
            # Rows that all ranks have alike are added up as any other tensor.
            is_tensor = is_shared and part.values.shape.is_fully_defined()
            sent.append(part.values if is_tensor else part)
    received = iter(reduce(sent))
    return [
        joined([_merged(next(received), part, is_shared, size) for part, is_shared in of_gradient])
        for of_gradient in parts
    ]


def parts_of(gradient: Gradient) -> list[tuple[Gradient, bool]]:
    """A gradient, or its look-ups one by one, and whether the rows of each are of no sample."""
    if not isinstance(gradient, tf.IndexedSlices):
        return [(gradient, False)]
    depends = _are_of_samples(gradient.indices)
    if depends is None:
        _warn_of_eager_rows()
        return [(gradient, False)]
    if not depends:
        return [(gradient, True)]
    found = []
    for values, indices in _look_ups(gradient):
        slices = tf.IndexedSlices(values, indices, gradient.dense_shape)
        found.append((slices, not _are_of_samples(indices)))
    if not any(is_shared or are_unique(part) for part, is_shared in found):
        return [(gradient, False)]
    return found


def _are_of_samples(indices: tf.Tensor) -> bool | None:
    """Whether each sample has rows of its own; None where nobody knows."""
    return depends_on_samples(indices, or_on_their_number=True)


def _look_ups(gradient: tf.IndexedSlices) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Values and indices of each look-up; TensorFlow concatenates those of one table."""
    values, indices = gradient.values.op, gradient.indices.op
    if values.type == indices.type == "ConcatV2" and len(values.inputs) == len(indices.inputs):
        return list(zip(values.inputs[:-1], indices.inputs[:-1], strict=True))
    return [(gradient.values, gradient.indices)]


def are_unique(rows: tf.IndexedSlices) -> bool:
    """Whether rows were looked up once for each index that a batch has; in a graph."""
    indices = rows.indices
    while hasattr(indices, "graph") and indices.op.type in ("Cast", "Identity", "Reshape"):
        indices = indices.op.inputs[0]
    return hasattr(indices, "graph") and (indices.op.type, indices.value_index) in _UNIQUE


def added_up(rows: tf.IndexedSlices) -> tf.IndexedSlices:
    """One row for each index, the sum of those that it has."""
    unique, places = tf.unique(rows.indices)
    summed = tf.math.unsorted_segment_sum(rows.values, places, tf.size(unique))
    return tf.IndexedSlices(summed, unique, rows.dense_shape)


def _merged(received: Gradient, sent: Gradient, is_shared: bool, size: int | tf.Tensor) -> Gradient:
    """The rows of all ranks, added up where they are of no sample, or each index has one."""
    if not isinstance(sent, tf.IndexedSlices):
        return received
    if not is_shared:
        return added_up(received) if are_unique(sent) else received
    if not isinstance(received, tf.IndexedSlices):
        return tf.IndexedSlices(received, sent.indices, sent.dense_shape)
    values, indices = received.values, received.indices

    def of_one_length() -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.concat([[size, -1], tf.shape(values)[1:]], 0)
        return tf.reduce_sum(tf.reshape(values, shape), 0), tf.identity(sent.indices)

    def of_several_lengths() -> tuple[tf.Tensor, tf.Tensor]:
        # Ranks that pad their batches to other lengths have other positions: each stands once.
        rows = added_up(received)
        return rows.values, rows.indices

    def are_equal() -> tf.Tensor:
        return tf.reduce_all(tf.equal(tf.reshape(indices, [size, -1]), sent.indices))

    # The same on all ranks: if one has the rows of every other, all have.
    is_alike = tf.cond(
        tf.equal(tf.size(indices), size * tf.size(sent.indices)),
        are_equal,
        lambda: tf.constant(False),
    )
    summed, rows = tf.cond(is_alike, of_one_length, of_several_lengths)
    return tf.IndexedSlices(summed, rows, sent.dense_shape)


def joined(parts: list[Gradient]) -> Gradient:
    """One gradient of its look-ups, as `parts_of` gives them."""
    if len(parts) == 1:
        return parts[0]
    values = tf.concat([part.values for part in parts], 0)
    indices = tf.concat([part.indices for part in parts], 0)
    return tf.IndexedSlices(values, indices, parts[0].dense_shape)


def _warn_of_eager_rows() -> None:
    """Without a graph nobody knows where rows come from."""
    warnings.warn(
        "A step that runs eagerly has a sparse gradient, as of an embedding. Its rows are put "
        "together as if all were looked up for samples, so a position embedding trains otherwise "
        "than in one process with optimizers such as Adam. Run the step in a tf.function.",
        stacklevel=2,
    )
