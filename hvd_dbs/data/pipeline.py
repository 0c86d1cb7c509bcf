"""From a source and an index stage to the data set that Keras reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.data.arrays import Arrays
from hvd_dbs.data.evaluation_stage import EvaluationStage
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.source import Source
from hvd_dbs.data.stream import Stream


def as_source(given: Any, global_batch_size: int) -> Source:
    """The source that was given, or one over the arrays that were.

    Raises:
        ValueError: If it is neither.
    """
    if isinstance(given, Stream):
        return given.source(global_batch_size)
    return given if isinstance(given, Source) else Arrays(given)


def require_usable(source: Source, shuffle_seed: int | None, training: bool) -> None:
    """Checks that the source can be read in that way.

    Raises:
        ValueError: If it cannot.
    """
    if shuffle_seed is not None and not training:
        raise ValueError(
            f"shuffle_seed={shuffle_seed} with training=False: an evaluation has no order. "
            f"Leave out shuffle_seed."
        )
    if shuffle_seed is not None and source.has_own_order:
        raise ValueError(
            f"shuffle_seed={shuffle_seed} with a stream, whose samples cannot be read by number. "
            f"Shuffle the stream itself and leave out shuffle_seed."
        )
    if not training and source.has_own_order:
        raise ValueError(
            "training=False with a stream, whose samples cannot be read by number. Evaluate on "
            "arrays, hvd.data.TFRecords or hvd.data.RandomAccess, or give Keras each rank's part "
            "of the stream as plain validation data."
        )


def make_dataset(source: Source, index_stage: IndexStage | EvaluationStage) -> tf.data.Dataset:
    """The samples of each step; one element is one local batch, of dynamic length."""
    options = tf.data.Options()
    options.deterministic = True
    # Keras makes an iterator each epoch, and letting go of the one before waits for its tuner: up
    # to seconds, on one rank or another, and so on all. Parallel calls are then one per core.
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = source.batches(_indices(index_stage))
    if not source.is_endless and batches.cardinality() != index_stage.num_steps:
        batches = batches.apply(tf.data.experimental.assert_cardinality(index_stage.num_steps))
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


def _indices(index_stage: IndexStage | EvaluationStage) -> tf.data.Dataset:
    """The sample numbers of each step, shape `[count]`, with a cardinality that is not asserted.

    Keras needs to know how many steps an epoch has, and what is left of an epoch that training
    goes on with has fewer: an end that comes early must be no error. So whatever number of steps
    is followed by nothings without end, cut to the number of a whole epoch; each element has a
    first dimension of 1, or of 0 where it is nothing, and `unbatch` counts them all as 1.
    """

    def steps() -> Iterator[NDArray[np.int64]]:
        for indices in index_stage():
            yield indices[np.newaxis]

    def count_as_one(rows: tf.Tensor) -> tf.Tensor:
        rows.set_shape([1, None])
        return rows

    rows = tf.data.Dataset.from_generator(
        steps, output_signature=tf.TensorSpec([1, None], tf.int64)
    )
    nothing = tf.data.Dataset.from_tensors(tf.zeros([0, 0], tf.int64)).repeat()
    return rows.concatenate(nothing).take(index_stage.num_steps).map(count_as_one).unbatch()
