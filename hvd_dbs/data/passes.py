"""Passes over an index stage as tf.data data sets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

NOT_YET = np.full(1, -1, dtype=np.int64)
"""In place of the samples of a step: they are not known yet, and will be asked for again.

Nothing of tf.data can end while Python has not answered, and who lets go of an iterator waits for
that. So a loop that is left during an epoch must not keep Python waiting.
"""


@dataclass(frozen=True)
class Pass:
    """What one iterator reads.

    Attributes:
        start: Positions at the beginning of the order that it does not read.
        steps: The samples of each step, int64 of shape `[count]`, or `NOT_YET`.
        global_batch_size: Positions from one step's first to the next one's, where they are equal.
    """

    start: int
    steps: Iterator[NDArray[np.int64]]
    global_batch_size: int = 1


class Stage(Protocol):
    """Says what is read, step by step.

    Attributes:
        num_steps: Steps of a whole pass; one that begins in the middle of an epoch has fewer.
        goes_straight_on: Whether each step of a pass begins where the one before ended, the first
            one at the start, so that no samples of other ranks lie between.
    """

    num_steps: int
    goes_straight_on: bool

    def begin_pass(self) -> Pass:
        """Begins to read what is to be read now."""
        ...


def indices(stage: Stage) -> tf.data.Dataset:
    """The sample numbers of each step, int64 of shape `[count]`."""

    def steps() -> Iterator[NDArray[np.int64]]:
        for numbers in stage.begin_pass().steps:
            yield numbers[np.newaxis]

    rows = tf.data.Dataset.from_generator(
        steps, output_signature=tf.TensorSpec([1, None], tf.int64)
    )
    nothing = tf.data.Dataset.from_tensors(tf.zeros([0, 0], tf.int64))
    return _counted(rows.filter(_is_known), nothing, stage.num_steps)


def read_passes(
    stage: Stage, read: Callable[[tf.data.Dataset, tf.Tensor, tf.Tensor], tf.data.Dataset]
) -> tf.data.Dataset:
    """What `read` makes of each pass.

    Args:
        stage: Says what is read.
        read: Gets the sample numbers of each step, and start and global batch size of the pass; in
            the graph.
    """
    numbers = itertools.count()
    under_way: dict[int, Iterator[NDArray[np.int64]]] = {}

    def begin() -> Iterator[tuple[int, int, int]]:
        one, number = stage.begin_pass(), next(numbers)
        under_way[number] = one.steps
        yield number, one.start, one.global_batch_size

    def steps(number: np.int64) -> Iterator[NDArray[np.int64]]:
        yield from under_way.pop(int(number))

    def read_one(number: tf.Tensor, *place: tf.Tensor) -> tf.data.Dataset:
        rows = tf.data.Dataset.from_generator(
            steps, args=(number,), output_signature=tf.TensorSpec([None], tf.int64)
        )
        return read(rows.filter(_is_known), *place)

    numbers_of_pass = (tf.TensorSpec([], tf.int64),) * 3
    return tf.data.Dataset.from_generator(begin, output_signature=numbers_of_pass).flat_map(
        read_one
    )


def _is_known(numbers: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(numbers >= 0)


def counted(batches: tf.data.Dataset, element: tf.data.Dataset, num_steps: int) -> tf.data.Dataset:
    """The elements of some data sets, of which a whole pass has `num_steps`, and knows that.

    Args:
        batches: Data sets of a single element each, as variants.
        element: A data set with such elements.
        num_steps: Steps of a whole pass.
    """
    as_variant = tf.data.experimental.to_variant

    def nothing(_: tf.Tensor) -> tf.Tensor:
        return as_variant(tf.data.Dataset.range(1))[tf.newaxis][:0]

    ones = batches.map(lambda variant: variant[tf.newaxis])
    nothings = tf.data.Dataset.from_tensors(0).map(nothing)
    spec = element.element_spec
    return _counted(ones, nothings, num_steps).map(
        lambda variant: tf.data.experimental.from_variant(variant, spec).get_single_element()
    )


def _counted(ones: tf.data.Dataset, nothing: tf.data.Dataset, num_steps: int) -> tf.data.Dataset:
    """The rows of tensors of shape `[1, ...]`, with a cardinality that is not asserted.

    Keras needs to know how many steps an epoch has, and what is left of an epoch that training
    goes on with has fewer: an end that comes early must be no error. So whatever number of steps
    is followed by nothings without end, cut to the number of a whole epoch; each element has a
    first dimension of 1, or of 0 where it is nothing, and `unbatch` counts them all as 1.
    """

    def count_as_one(tensor: tf.Tensor) -> tf.Tensor:
        tensor.set_shape([1, *tensor.shape[1:]])
        return tensor

    return ones.concatenate(nothing.repeat()).take(num_steps).map(count_as_one).unbatch()
