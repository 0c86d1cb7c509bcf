"""Whatever the source: each sample once per epoch, equal steps, the same global batches."""

from __future__ import annotations

import functools
import struct
import tempfile
from itertools import chain, pairwise
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_dbs.data import RandomAccess, TFRecords
from hvd_dbs.data.arrays import Arrays
from hvd_dbs.data.evaluation_stage import Evaluation, EvaluationStage
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import make_dataset
from hvd_dbs.sampling import step_batch_sizes


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
SOURCES = {
    "arrays": lambda n: Arrays(np.arange(n)),
    "random access": lambda n: RandomAccess(range(n), num_threads=2),
    "blocks of records": lambda n: TFRecords(record_files(n), numbers, block_size=4),
    "py data set": lambda n: RandomAccess(Fives(n)),
}


@st.composite
def plans(draw):
    """Some plans of one sum for 1 to 3 ranks."""
    size = draw(st.integers(1, 3))
    total = draw(st.integers(max(size, 2), 20))
    border = st.lists(st.integers(1, total - 1), min_size=size - 1, max_size=size - 1, unique=True)
    some = draw(st.lists(border, min_size=1, max_size=3))
    return [tuple(np.diff([0, *sorted(borders), total]).tolist()) for borders in some]


def global_batches(source, plan, seed, epoch):
    """The samples of each step, of all ranks, and what each rank was given."""
    ranks = []
    for rank in range(len(plan)):
        stage = IndexStage(source.num_samples, seed, rank, plan, source.block_size)
        stage.begin_training(plan)
        stage.open_epoch(epoch, plan, settled=stage.num_steps)
        ranks.append([batch.tolist() for batch in make_dataset(source, stage).as_numpy_iterator()])
        stage.end_training(plan)
    assert len({len(batches) for batches in ranks}) == 1
    counts = [step_batch_sizes(step, plan, source.num_samples) for step in range(len(ranks[0]))]
    return [
        [sample for r, batches in enumerate(ranks) for sample in batches[step][: count[r]]]
        for step, count in enumerate(counts)
    ]


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=12, deadline=None)
@given(plans(), st.integers(1, 90), st.none() | st.integers(0, 99))
def test_training(kind, some, num_samples, seed):
    source = SOURCES[kind](num_samples)
    for epoch, plan in enumerate(some):
        batches = global_batches(source, plan, seed, epoch)
        assert len(batches) == -(-num_samples // sum(plan))
        assert sorted(chain.from_iterable(batches)) == list(range(num_samples))
        even = global_batches(source, some[0], seed, epoch)
        assert batches == even


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=8, deadline=None)
@given(plans(), st.integers(1, 90))
def test_evaluation(kind, some, num_samples):
    source = SOURCES[kind](num_samples)
    for plan in some:
        read, lengths = [], set()
        for rank in range(len(plan)):
            stage = EvaluationStage(num_samples, rank, lambda plan=plan: plan, Evaluation())
            batches = list(make_dataset(source, stage).as_numpy_iterator())
            lengths.add(len(batches))
            read += np.concatenate(batches).tolist()[: stage.weight]
        assert sorted(read) == list(range(num_samples))
        assert len(lengths) == 1
