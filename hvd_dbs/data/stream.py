"""tf.data data sets, which can only be read from their beginning on, as sources."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_dbs.data.source import Source

_COUNTS = 1 << 32
"""A key of the endless stream is step * this + samples of the step."""


class Stream:
    """Any `tf.data.Dataset` of single samples, not batched.

    A **finite** stream is read by all ranks, each of which keeps its windows; samples of other
    ranks pass by. So give it cheap records, and put what is expensive (decoding, augmenting)
    behind `balancer.dataset`. Guaranteed, if the stream yields the same samples in the same order
    on all ranks: each sample once per epoch, equal steps, the same global batches whatever the
    plan is. The order is the stream's: shuffle it with a fixed seed and
    `reshuffle_each_iteration=False`. With reshuffling, ranks agree only as long as all of them
    make equally many iterators.

    An **endless** stream, in Horovod's usual style (`shard`, `repeat`, `shuffle`, and
    `fit(..., steps_per_epoch=...)`), is each rank's own; leave out its `batch`. Only the batch size
    follows the plan: sum and steps are guaranteed, and that gradients and metrics are weighted by
    samples. Which samples a rank sees, how often, and what global batches are made of is up to
    the streams, and changes with the plan. One iterator lives through all epochs of a fit.

    A stream cannot be evaluated on, and training cannot go on in the middle of its epoch.

    Args:
        dataset: The samples.
        num_samples: Samples of a finite stream, where tf.data does not know it; no more are read.
        steps_per_epoch: Makes it an endless stream, with so many steps in what counts as an
            epoch; it is repeated should it end. `fit` gets the same number.

    Example:
        >>> records = tf.data.TFRecordDataset(files, "GZIP")  # doctest: +SKIP
        >>> stream = hvd.data.Stream(records, num_samples=50_000)  # doctest: +SKIP
        >>> dataset = balancer.dataset(stream).map(parse)  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        num_samples: int | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        self._dataset = dataset
        self._num_samples = num_samples
        self._steps_per_epoch = steps_per_epoch

    def source(self, global_batch_size: int) -> Source:
        """The source that it is at a global batch size.

        Raises:
            TypeError: If it is over no data set.
            ValueError: If it is not known how many samples or steps an epoch has.
        """
        if not isinstance(self._dataset, tf.data.Dataset):
            raise TypeError(
                f"dataset is a {type(self._dataset).__name__}; expected a tf.data.Dataset."
            )
        for name, value in [
            ("num_samples", self._num_samples),
            ("steps_per_epoch", self._steps_per_epoch),
        ]:
            if value is not None and not value >= 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        if self._steps_per_epoch is not None:
            if self._num_samples is not None:
                raise ValueError(
                    f"num_samples={self._num_samples} is for a finite stream, steps_per_epoch="
                    f"{self._steps_per_epoch} for an endless one. Give one of them."
                )
            return _EndlessStream(self._dataset, self._steps_per_epoch * global_batch_size)
        cardinality = int(self._dataset.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "The stream is endless. Give Stream its steps_per_epoch, the same as fit, or "
                "leave out repeat()."
            )
        if cardinality == tf.data.UNKNOWN_CARDINALITY and self._num_samples is None:
            raise ValueError(
                "tf.data does not know how many samples the stream has. Give Stream its "
                "num_samples; counted once: dataset.reduce(0, lambda n, _: n + 1)."
            )
        if 0 <= cardinality < (self._num_samples or 1):
            raise ValueError(
                f"The stream has {cardinality} samples; expected at least {self._num_samples or 1}."
            )
        return _FiniteStream(self._dataset, self._num_samples or cardinality, global_batch_size)


class _FiniteStream(Source):
    """Windows out of a stream that all ranks read alike."""

    has_own_order = True

    def __init__(self, dataset: tf.data.Dataset, num_samples: int, global_batch_size: int) -> None:
        self._dataset = dataset
        self._num_samples = num_samples
        self._global_batch_size = global_batch_size

    @property
    def num_samples(self) -> int:
        return self._num_samples

    @property
    def identity(self) -> str:
        return repr(self._dataset.element_spec)

    def batches(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        """Takes the rank's part of each global batch; samples of other ranks are not copied."""

        def part(step: tf.Tensor, global_batch: Any, samples: tf.Tensor) -> tf.data.Dataset:
            size = tf.constant(self._global_batch_size, tf.int64)
            in_step = tf.debugging.Assert(
                samples[0] // size == step,
                ["A stream is read from its beginning on; asked for sample", samples[0]],
            )
            with tf.control_dependencies([] if in_step is None else [in_step]):
                first = samples[0] % size
            count = tf.size(samples, out_type=tf.int64)
            mine = tf.data.Dataset.zip(global_batch).skip(first).take(count)
            # Less samples than the rank's weight says must not pass unnoticed.
            return mine.apply(tf.data.experimental.assert_cardinality(count)).batch(count)

        global_batches = self._dataset.take(self._num_samples).window(self._global_batch_size)
        steps = tf.data.Dataset.counter()
        return tf.data.Dataset.zip(steps, global_batches, indices).flat_map(part)


class _EndlessStream(Source):
    """Batches of a rank's own stream, as large as the plan says."""

    has_own_order = True
    is_endless = True

    def __init__(self, dataset: tf.data.Dataset, num_samples: int) -> None:
        self._dataset = dataset
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        return self._num_samples

    @property
    def identity(self) -> str:
        return f"endless {self._dataset.element_spec!r}"

    def batches(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        """Groups as many of the next samples as each step has; epochs follow each other."""

        def keys(step: tf.Tensor, samples: tf.Tensor) -> tf.data.Dataset:
            count = tf.size(samples, out_type=tf.int64)
            return tf.data.Dataset.from_tensors(step * _COUNTS + count).repeat(count)

        def group(key: tf.Tensor, samples: tf.data.Dataset) -> tf.data.Dataset:
            return samples.batch(key % _COUNTS).map(lambda _, batch: batch)

        key_of_each = indices.repeat().enumerate().flat_map(keys)
        return tf.data.Dataset.zip(key_of_each, self._dataset.repeat()).group_by_window(
            key_func=lambda key, _: key,
            reduce_func=group,
            window_size_func=lambda key: key % _COUNTS,
        )
