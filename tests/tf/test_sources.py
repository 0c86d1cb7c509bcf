"""Whatever the source: each sample once per epoch, equal steps, the same global batches."""

from __future__ import annotations

import functools
import struct
import tempfile
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_dbs.data import RandomAccess, Stream, TFRecords
from hvd_dbs.data.arrays import Arrays
from hvd_dbs.data.evaluation_stage import Evaluation, EvaluationStage
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import as_source, make_dataset, moves_of
from hvd_dbs.sampling import EpochOrder, SampleCosts


class Fives(keras.utils.PyDataset):
    """Batches of 5 out of the numbers below n."""

    def __init__(self, n):
        super().__init__(workers=2)
        self.n = n

    def __len__(self):
        return (self.n + 4) // 5

    def __getitem__(self, number):
        return np.arange(5 * number, min(5 * number + 5, self.n))


@functools.cache
def record_files(n):
    """The numbers below n in files, one of them empty; no two records have the same length."""
    folder = Path(tempfile.mkdtemp(dir=FOLDER.name))
    borders = [0, n // 7, n // 7, n // 2, n]
    for first, last in pairwise(borders):
        with tf.io.TFRecordWriter(str(folder / f"{first:02}-{last:02}")) as writer:
            for number in range(first, last):
                writer.write(struct.pack("<q", number) + bytes(number))
    return str(folder / "*")


def numbers(batch):
    return tf.io.decode_raw(tf.strings.substr(batch, 0, 8), tf.int64)[:, 0]


FOLDER = tempfile.TemporaryDirectory()


def stream(n, global_batch_size):
    return Stream(tf.data.Dataset.range(n)).source(global_batch_size)


BY_NUMBER = {
    "arrays": lambda n, _: Arrays(np.arange(n)),
    "random access": lambda n, _: RandomAccess(range(n), num_threads=2),
    "blocks of records": lambda n, _: TFRecords(record_files(n), numbers, block_size=4),
    "py data set": lambda n, _: RandomAccess(Fives(n)),
}
SOURCES = {**BY_NUMBER, "stream": stream}


@st.composite
def plans(draw):
    """Some plans of one sum for 1 to 3 ranks."""
    size = draw(st.integers(1, 3))
    total = draw(st.integers(max(size, 2), 20))
    border = st.lists(st.integers(1, total - 1), min_size=size - 1, max_size=size - 1, unique=True)
    some = draw(st.lists(border, min_size=1, max_size=3))
    return [tuple(np.diff([0, *sorted(borders), total]).tolist()) for borders in some]


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=6, deadline=None)
@given(plans(), st.integers(1, 90), st.none() | st.integers(0, 99), st.booleans())
def test_training(kind, some, num_samples, seed, by_cost):
    total = sum(some[0])
    source = SOURCES[kind](num_samples, total)
    seed = None if source.has_own_order else seed
    given_costs = np.random.default_rng(seed).lognormal(size=num_samples)
    costs = SampleCosts.of(given_costs, num_samples) if by_cost else None
    stages = [
        IndexStage(num_samples, seed, rank, some[0], source.block_size, costs=costs)
        for rank in range(len(some[0]))
    ]
    datasets = [make_dataset(source, stage) for stage in stages]
    for stage in stages:
        stage.begin_training(some[0])
    for epoch, plan in enumerate(some):
        for stage in stages:
            stage.open_epoch(epoch, plan, settled=stage.num_steps)
        ranks = [list(dataset.as_numpy_iterator()) for dataset in datasets]
        order = EpochOrder(num_samples, seed, epoch, source.block_size)
        samples = order.indices(0, num_samples).tolist()
        assert sorted(samples) == list(range(num_samples))
        for step, batches in enumerate(zip(*ranks, strict=True)):  # Equal steps.
            counts = [stage.share(step).num_samples for stage in stages]
            read = [
                sample
                for batch, count in zip(batches, counts, strict=True)
                for sample in batch[:count].tolist()
            ]
            assert read == samples[step * total : (step + 1) * total]
        assert len(ranks[0]) == -(-num_samples // total)
    for stage in stages:
        stage.end_training(some[0])


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=5, deadline=None)
@given(plans(), st.integers(1, 90))
def test_evaluation(kind, some, num_samples):
    source = SOURCES[kind](num_samples, sum(some[0]))
    in_force = []
    stages = [
        EvaluationStage(
            num_samples, lambda rank=rank: rank, lambda: (in_force or some)[-1], Evaluation()
        )
        for rank in range(len(some[0]))
    ]
    datasets = [make_dataset(source, stage) for stage in stages]
    for plan in some:
        in_force.append(plan)
        read, lengths = [], set()
        for stage, dataset in zip(stages, datasets, strict=True):
            batches = list(dataset.as_numpy_iterator())
            lengths.add(len(batches))
            read += np.concatenate(batches).tolist()[: stage.weight]
        assert sorted(read) == list(range(num_samples))
        assert len(lengths) == 1


@pytest.mark.parametrize(
    ("source", "instead"),
    [
        (tf.data.Dataset.range(8), "hvd.data.Stream"),
        ("folder/*.tfrecord", "hvd.data.TFRecords"),
        (Path("folder"), "hvd.data.TFRecords"),
        (Fives(10), "is a Fives, .* hvd.data.RandomAccess"),
        ((number for number in range(3)), "is a generator, .* hvd.data.Stream"),
        (lambda: range(3), "is a function, .* hvd.data.Stream"),
        (None, "is None; expected arrays"),
    ],
)
def test_what_is_no_source_is_told_which_one_reads_it(source, instead):
    with pytest.raises(TypeError, match=instead):
        as_source(source, 4)


@pytest.mark.parametrize(
    ("behind", "moves"),
    [
        (lambda data: data, []),
        (lambda data: data.map(lambda x: x + 1, num_parallel_calls=2).prefetch(2), []),
        (lambda data: data.shuffle(4), ["shuffle"]),
        (lambda data: data.map(lambda x: x).cache().prefetch(1), ["cache"]),
        (lambda data: data.unbatch().batch(2), ["batch", "unbatch"]),
        (lambda data: data.unbatch().batch(2, num_parallel_calls=2), ["batch", "unbatch"]),
        (lambda data: data.padded_batch(2), ["padded_batch"]),
        (lambda data: data.rebatch(2), ["rebatch"]),
        (lambda data: data.filter(lambda x: True), ["filter"]),
        (lambda data: data.skip(1), ["skip"]),
        (lambda data: data.shard(2, 0), ["shard"]),
        (lambda data: data.concatenate(data), ["concatenate"]),
        (lambda data: data.ignore_errors(), ["ignore_errors"]),
        (
            lambda data: data.group_by_window(
                lambda _: tf.constant(0, tf.int64), lambda _, group: group, window_size=2
            ),
            ["group_by_window"],
        ),
        (lambda data: tf.data.Dataset.zip(tf.data.Dataset.range(9).shuffle(3), data), []),
    ],
)
def test_what_moves_samples_to_other_batches_is_seen(behind, moves):
    ours = make_dataset(Arrays(np.arange(8.0)), IndexStage(8, seed=None, rank=0, batch_sizes=(4,)))
    assert moves_of(behind(ours)) == moves
    assert moves_of(behind(tf.data.Dataset.range(8).batch(2))) == []
