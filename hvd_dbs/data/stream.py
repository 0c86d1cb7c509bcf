"""tf.data data sets, which can only be read from their beginning on, as sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_dbs.data.passes import Stage, counted, read_passes
from hvd_dbs.data.source import Source

_COUNTS = 1 << 32
"""A key of samples that are read one after the other is step * this + samples of the step."""
_GAPS = (
    "The samples used of this epoch are not the first ones of the stream. Go on with the source "
    "and the layout that training began with. The step that is not where it should be is"
)

_UNSEEDED = (
    "The stream is shuffled or sampled without a seed, so each rank would read it in another "
    "order, and samples would be lost and repeated. Give it shuffle(..., seed=7, "
    "reshuffle_each_iteration=False), sample_from_datasets(..., seed=7), and list_files "
    "shuffle=False."
)

_ANY_ORDER = (
    "The stream has map(..., deterministic=False), so each rank would read it in another order, "
    "and samples would be lost and repeated. Leave out deterministic, or put the map downstream of "
    "balancer.dataset, where it is given batches."
)

_TOO_SHORT = (
    "The stream has {} samples, num_samples={} was given. Give hvd.data.Stream the number of "
    "samples that it has."
)

_EMPTY = (
    "The stream of this rank has no samples. Give each rank some of its own: with fewer files than "
    "ranks, shard(hvd.size(), hvd.rank()) the records instead of the files."
)


class Stream:
    """Any `tf.data.Dataset` of single samples, not batched.

    A **finite** stream is read by all ranks, each of which keeps its windows; samples of other
    ranks pass by. So give it cheap records, and put what is expensive (decoding, augmenting)
    downstream of `balancer.dataset`. Guaranteed, if the stream yields the same samples in the same
    order on all ranks: each sample once per epoch, equal steps, the same global batches whatever
    the plan is. The order is the stream's: shuffle it with a fixed seed and
    `reshuffle_each_iteration=False`. With reshuffling, ranks agree only as long as all of them
    make equally many iterators.

    An **endless** stream, in Horovod's usual style (`shard`, `repeat`, `shuffle`, and
    `fit(..., steps_per_epoch=...)`), is each rank's own; leave out its `batch`. Only the batch size
    follows the plan: sum and steps are guaranteed, and that gradients and metrics are weighted by
    samples. Which samples a rank sees, how often, and what global batches are made of is up to
    the streams, and changes with the plan. One iterator lives through all epochs of a fit.

    Training goes on in the middle of an epoch of a finite stream: the samples used before are read
    again and passed by, which costs reading that part of the stream, and nothing after it. It can
    be evaluated on (`training=False`): each rank skips to its consecutive part, so that the last
    rank reads the whole stream. An endless stream begins anew when training goes on, and cannot be
    evaluated on.

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
            ValueError: If it is not known how many samples or steps an epoch has, or what all
                ranks read has no order of its own.
        """
        if not isinstance(self._dataset, tf.data.Dataset):
            raise TypeError(
                f"dataset is a {type(self._dataset).__name__}; expected a tf.data.Dataset."
            )
        for name, value in [
            ("num_samples", self._num_samples),
            ("steps_per_epoch", self._steps_per_epoch),
        ]:
            if value is not None and not (isinstance(value, int | np.integer) and value >= 1):
                raise ValueError(f"{name}={value!r} must be at least 1, a whole number.")
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
        if any(not any(seeds) for seeds in _shuffle_seeds(self._dataset)):
            raise ValueError(_UNSEEDED)
        if any(getattr(one, "_deterministic", None) == "false" for one in _parts(self._dataset)):
            raise ValueError(_ANY_ORDER)
        return _FiniteStream(self._dataset, self._num_samples or cardinality)


class _FiniteStream(Source):
    """Windows out of a stream that all ranks read alike."""

    has_own_order = True

    def __init__(self, dataset: tf.data.Dataset, num_samples: int) -> None:
        self._dataset = dataset
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        return self._num_samples

    @property
    def identity(self) -> str:
        shards = "".join(f" of {shard}" for shard in _shards(self._dataset))
        shuffles = "".join(f" of shuffle{seeds}" for seeds in _shuffle_seeds(self._dataset))
        return f"{self._dataset.element_spec!r}{shards}{shuffles}"

    def batches(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        """Reads samples that follow each other, from the stream's beginning on."""
        return _grouped(indices, self._samples)

    def read(self, stage: Stage) -> tf.data.Dataset:
        """Skips to where the pass begins, then takes the rank's part of each global batch.

        Samples of other ranks are not copied; an evaluation has none between a rank's own.
        """
        if stage.goes_straight_on:
            return read_passes(
                stage, lambda rows, start, _: _grouped(rows, self._samples.skip(start))
            )

        def read(rows: tf.data.Dataset, start: tf.Tensor, size: tf.Tensor) -> tf.data.Dataset:
            def part(step: tf.Tensor, samples: tf.Tensor, global_batch: Any) -> tf.Tensor:
                first = samples[0] - start
                in_step = tf.raw_ops.Assert(condition=first // size == step, data=[_GAPS, step])
                with tf.control_dependencies([in_step]):
                    first = first % size
                count = tf.size(samples, out_type=tf.int64)
                mine = tf.data.Dataset.zip(global_batch).skip(first).take(count)
                mine = mine.apply(tf.data.experimental.assert_cardinality(count)).batch(count)
                return tf.data.experimental.to_variant(mine)

            # `window` takes any end, and any error, for the end of the samples.
            num_batches = (self._num_samples - start + size - 1) // size
            global_batches = (
                self._samples.skip(start)
                .window(size)
                .apply(tf.data.experimental.assert_cardinality(num_batches))
            )
            steps = tf.data.Dataset.counter()
            return tf.data.Dataset.zip(steps, rows, global_batches).map(part)

        one = self._dataset.batch(1)  # Of as many samples as a step has.
        return counted(read_passes(stage, read), one, stage.num_steps)

    @property
    def _samples(self) -> tf.data.Dataset:
        """All samples; fewer must not pass unnoticed."""
        known = tf.data.experimental.assert_cardinality(self._num_samples)
        end = _failing(self._dataset, self._end_too_soon)
        return self._dataset.concatenate(end).take(self._num_samples).apply(known)

    def _end_too_soon(self) -> tf.Tensor:
        """How many samples there are."""
        found = self._dataset.reduce(tf.constant(0, tf.int64), lambda n, _: n + 1)
        return tf.strings.format(_TOO_SHORT, (found, self._num_samples))


def _failing(dataset: tf.data.Dataset, text: Callable[[], tf.Tensor]) -> tf.data.Dataset:
    """In place of samples that are missing in a data set: an error that says so."""

    def fail(_: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[text()])]):
            return tf.constant(0)

    return tf.data.Dataset.range(1).map(fail).flat_map(lambda _: dataset.take(0))


def _shards(dataset: tf.data.Dataset) -> list[str]:
    """Which shards of its inputs it is made of: those that all ranks read must be the same."""
    found = _found(dataset, "_ShardDataset", "_num_shards", "_index")
    return [f"shard({', '.join(map(str, parts))})" for parts in found]


def _shuffle_seeds(dataset: tf.data.Dataset) -> list[tuple[Any, ...]]:
    """The pairs of seeds by which its inputs are shuffled or sampled; two zeros mean any order."""
    kind = "_DirectedInterleaveDataset"  # The first of its inputs chooses among the others.
    choices = [one._inputs()[0] for one in _parts(dataset) if type(one).__name__ == kind]
    of_choices = (_found(choice, "_RandomDataset", "_seed", "_seed2") for choice in choices)
    shuffled = _found(dataset, "_ShuffleDataset", "_seed", "_seed2")
    return [*shuffled, *(seeds for found in of_choices for seeds in found)]


def _found(dataset: tf.data.Dataset, kind: str, *names: str) -> list[tuple[Any, ...]]:
    """Values of attributes of each data set of a kind that it is made of."""
    of_parts = (
        (tf.get_static_value(getattr(one, name)) for name in names)
        for one in _parts(dataset)
        if type(one).__name__ == kind
    )
    return [tuple(None if value is None else int(value) for value in one) for one in of_parts]


def _parts(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """All data sets that it is made of, itself first."""
    return [dataset, *(one for given in dataset._inputs() for one in _parts(given))]


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
        end = _failing(self._dataset, lambda: tf.constant(_EMPTY))  # No other one ends.
        return _grouped(indices.repeat(), self._dataset.repeat().concatenate(end))


def _grouped(rows: tf.data.Dataset, samples: tf.data.Dataset) -> tf.data.Dataset:
    """The next samples, as many for each step as it has sample numbers."""

    def keys(step: tf.Tensor, numbers: tf.Tensor) -> tf.data.Dataset:
        count = tf.size(numbers, out_type=tf.int64)
        return tf.data.Dataset.from_tensors(step * _COUNTS + count).repeat(count)

    def group(key: tf.Tensor, some: tf.data.Dataset) -> tf.data.Dataset:
        return some.batch(key % _COUNTS).map(lambda _, batch: batch)

    key_of_each = rows.enumerate().flat_map(keys)
    return tf.data.Dataset.zip(key_of_each, samples).group_by_window(
        key_func=lambda key, _: key,
        reduce_func=group,
        window_size_func=lambda key: key % _COUNTS,
    )
