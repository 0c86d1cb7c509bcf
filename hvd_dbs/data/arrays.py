"""Data sets over arrays in memory."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_dbs.data.index_stage import IndexStage


def load(source: Any) -> tuple[Any, int]:
    """Arrays as tensors on the host, and how many samples they have.

    Args:
        source: Arrays or tensors in any nesting of tuples, lists and dicts, all with the same
            first dimension.

    Raises:
        ValueError: If there is no sample, or the first dimensions differ.
    """
    with tf.device("CPU"):
        tensors = tf.nest.map_structure(tf.convert_to_tensor, source)
    leaves = tf.nest.flatten(tensors)
    if not leaves or any(leaf.shape.rank == 0 for leaf in leaves):
        raise ValueError(
            f"dataset source has leaves of shapes {[tuple(leaf.shape) for leaf in leaves]}; "
            f"expected arrays whose first dimension counts the samples."
        )
    lengths = {int(leaf.shape[0]) for leaf in leaves}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"dataset source has arrays of {sorted(lengths)} samples; expected the same number, "
            f"at least 1, in each."
        )
    return tensors, lengths.pop()


def make_dataset(tensors: Any, index_stage: IndexStage) -> tf.data.Dataset:
    """Gathers the samples of each step; one element is one local batch, of dynamic length."""
    indices = tf.data.Dataset.from_generator(
        index_stage, output_signature=tf.TensorSpec([None], tf.int64)
    )
    options = tf.data.Options()
    options.deterministic = True
    # Keras makes an iterator each epoch, and letting go of the one before waits for its tuner: up
    # to seconds, on one rank or another, and so on all. Parallel calls are then one per core.
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF

    def gather(rows: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)

    return (
        indices.apply(tf.data.experimental.assert_cardinality(index_stage.num_steps))
        .map(gather, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )
