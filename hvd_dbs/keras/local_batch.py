"""A rank's batch of a step, cut into micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_dbs.ops.step_samples import StepSamples
from hvd_dbs.tensorflow.global_batch import GlobalBatch
from hvd_dbs.tensorflow.micro_batch import MicroBatch


class Part(NamedTuple):
    """A micro-batch, as tensors alone.

    Attributes:
        data: Its rows, in the nesting of the batch.
        num_rows: How many, int64 scalar.
        weight: Its samples that count, float64 scalar.
        total: Samples of all ranks in the step, float64 scalar.
        share: Its part of the rows of the local batch, float64 scalar.
    """

    data: Any
    num_rows: tf.Tensor
    weight: tf.Tensor
    total: tf.Tensor
    share: tf.Tensor

    def micro_batch(self, denominators: tf.Tensor | None) -> MicroBatch:
        """What its losses know of the global batch; see `MicroBatch`."""
        return MicroBatch(self.weight, self.total, self.num_rows, denominators)


@dataclass(frozen=True)
class LocalBatch:
    """A rank's batch of a step, in parts of one size but for the last one.

    Attributes:
        data: Tensors in any nesting.
        num_rows: Their first dimension, int64 scalar.
        part_rows: Rows of a part, int64 scalar.
        of_all: The global batch that it is a part of.
    """

    data: Any
    num_rows: tf.Tensor
    part_rows: tf.Tensor
    of_all: GlobalBatch

    @classmethod
    def of(cls, data: Any, samples: StepSamples, micro_batch_size: int | None) -> LocalBatch:
        """That of the step under way.

        Args:
            data: As many rows as the rank has samples, or a multiple of that.
            samples: Knows the samples of the step.
            micro_batch_size: Samples of a part; None: all.

        Raises:
            TypeError: If data are sparse tensors.
        """
        leaves = tf.nest.flatten(data)
        if any(isinstance(leaf, tf.SparseTensor) for leaf in leaves):
            raise TypeError(
                "The data of a step that is computed in micro-batches have a SparseTensor, which "
                "cannot be cut. Make it dense: dataset.map(tf.sparse.to_dense)."
            )
        of_step = samples.batch()
        with tf.device("CPU"):
            lengths = [_num_rows(leaf) for leaf in leaves]
            with tf.control_dependencies(_require_equal(lengths)):
                num_rows = part_rows = tf.identity(lengths[0])
            if micro_batch_size is not None:
                rows_of_sample = num_rows // tf.maximum(of_step.num_samples, 1)
                part_rows = micro_batch_size * tf.maximum(rows_of_sample, 1)
            part_rows = tf.maximum(part_rows, 1)
        return cls(data, num_rows, part_rows, GlobalBatch(of_step.num_samples, of_step.total))

    @property
    def num_parts(self) -> tf.Tensor:
        """How many, int32 scalar, at least 1."""
        with tf.device("CPU"):
            num = (self.num_rows + self.part_rows - 1) // self.part_rows
            return tf.cast(tf.maximum(num, 1), tf.int32)

    def part(self, i: tf.Tensor | int) -> Part:
        """Part number `i`."""
        with tf.device("CPU"):
            start = tf.cast(i, tf.int64) * self.part_rows
            end = tf.minimum(start + self.part_rows, self.num_rows)
            share = tf.cast((end - start) / tf.maximum(self.num_rows, 1), tf.float64)
            weight = self.of_all.weight * share
        data = tf.nest.map_structure(lambda leaf: leaf[start:end], self.data)
        return Part(data, end - start, weight, self.of_all.total, share)

    @property
    def part_spec(self) -> Part:
        """The types of a part; the number of its rows is not among them."""
        spec: Part = tf.nest.map_structure(tf.type_spec_from_value, self.part(0))
        return spec


def _num_rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    return tf.shape(leaf, tf.int64)[0]


def _require_equal(lengths: list[tf.Tensor]) -> list[Any]:
    """Operations that fail if tensors have different first dimensions."""
    found = [
        tf.debugging.assert_equal(
            length,
            lengths[0],
            "Tensors of a step that is computed in micro-batches have different first dimensions, "
            "so they cannot be cut alike. Let dataset.map give each as many rows as samples.",
        )
        for length in lengths[1:]
    ]
    return [one for one in found if one is not None]
