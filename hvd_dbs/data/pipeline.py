"""From a source and an index stage to the data set that Keras reads."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_dbs.data.arrays import Arrays
from hvd_dbs.data.evaluation_stage import EvaluationStage
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.source import Source


def as_source(given: Any) -> Source:
    """The source that was given, or one over the arrays that were.

    Raises:
        ValueError: If it is neither.
    """
    return given if isinstance(given, Source) else Arrays(given)


def make_dataset(source: Source, index_stage: IndexStage | EvaluationStage) -> tf.data.Dataset:
    """The samples of each step; one element is one local batch, of dynamic length."""
    indices = tf.data.Dataset.from_generator(
        index_stage, output_signature=tf.TensorSpec([None], tf.int64)
    )
    options = tf.data.Options()
    options.deterministic = True
    # Keras makes an iterator each epoch, and letting go of the one before waits for its tuner: up
    # to seconds, on one rank or another, and so on all. Parallel calls are then one per core.
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return (
        source.batches(indices)
        .apply(tf.data.experimental.assert_cardinality(index_stage.num_steps))
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )
