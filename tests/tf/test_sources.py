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
@settings(max_examples=6)
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
            counts = [stage.rank_step(step).num_samples for stage in stages]
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
@settings(max_examples=5)
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
        ((np.ones(2), tf.ragged.constant([[1], []])), "a RaggedTensor; .* hvd.data.Stream"),
        ({"x": tf.sparse.eye(3)}, "has a SparseTensor; .*tf.sparse.to_dense"),
    ],
)
def test_what_is_no_source_is_told_which_one_reads_it(source, instead):
    with pytest.raises(TypeError, match=instead):
        as_source(source, 4)


def one(*batch):
    return tf.data.Dataset.from_tensors(batch[0])


FIRST = tf.constant(0, tf.int64)
NO_MOVE = {
    "apply": lambda data: data.apply(tf.data.experimental.assert_cardinality(2)),
    "enumerate": lambda data: data.enumerate(),
    "map": lambda data: data.map(lambda x: x + 1, num_parallel_calls=2).prefetch(2),
    "prefetch": lambda data: data.map(lambda x: x + 1).prefetch(2),
    "repeat": lambda data: data.repeat(),
    "take": lambda data: data.take(1),
    "with_options": lambda data: data.with_options(tf.data.Options()),
    "zip": lambda data: tf.data.Dataset.zip(tf.data.Dataset.range(9).shuffle(3), data),
}
MOVES = {
    "batch": lambda data: data.unbatch().batch(2, num_parallel_calls=2),
    "bucket_by_sequence_length": lambda data: data.bucket_by_sequence_length(
        tf.size, [3], [1, 1], no_padding=True
    ),
    "cache": lambda data: data.map(lambda x: x).cache().prefetch(1),
    "choose_from_datasets": lambda data: tf.data.Dataset.choose_from_datasets(
        [data], tf.data.Dataset.from_tensors(FIRST)
    ),
    "concatenate": lambda data: data.concatenate(data),
    "filter": lambda data: data.filter(lambda x: True),
    "flat_map": lambda data: data.flat_map(one),
    "group_by_window": lambda data: data.group_by_window(
        lambda _: FIRST, lambda _, group: group, window_size=2
    ),
    "ignore_errors": lambda data: data.ignore_errors(),
    "interleave": lambda data: data.interleave(one, num_parallel_calls=2),
    "padded_batch": lambda data: data.padded_batch(2),
    "ragged_batch": lambda data: data.ragged_batch(2),
    "rebatch": lambda data: data.rebatch(2),
    "rejection_resample": lambda data: data.rejection_resample(lambda x: 0, [1.0]),
    "sample_from_datasets": lambda data: tf.data.Dataset.sample_from_datasets([data, data]),
    "scan": lambda data: data.scan(0, lambda state, x: (state, x)),
    "shard": lambda data: data.shard(2, 0),
    "shuffle": lambda data: data.shuffle(4),
    "skip": lambda data: data.skip(1),
    "snapshot": lambda data: data.snapshot(tempfile.mkdtemp(dir=FOLDER.name)),
    "sparse_batch": lambda data: data.sparse_batch(2, [9]),
    "take_while": lambda data: data.take_while(lambda x: True),
    "unbatch": lambda data: data.unbatch(),
    "unique": lambda data: data.unique(),
    "window": lambda data: data.window(1),
}
NOT_BEHIND = {
    *("counter", "from_generator", "from_tensor_slices", "from_tensors", "list_files", "load"),
    *("random", "range"),  # Made of no other data set.
    *("as_numpy_iterator", "cardinality", "element_spec", "fingerprint", "get_single_element"),
    *("options", "reduce", "save"),  # No data sets.
}
OF_SEVERAL = "sample_from_datasets or choose_from_datasets"
NAMED_OTHERWISE = {
    "bucket_by_sequence_length": "group_by_window",
    "choose_from_datasets": OF_SEVERAL,
    "rejection_resample": OF_SEVERAL,
    "sample_from_datasets": OF_SEVERAL,
}


def ours():
    stage = IndexStage(8, seed=None, rank=0, batch_sizes=(4,))
    return make_dataset(Arrays(np.arange(8)), stage)


def nested(numbers):
    """Inputs of one shape in lists, as Keras's models take them."""
    return {"in": [numbers, 10 * numbers]}, [numbers]


@pytest.mark.parametrize("kind", ["arrays", "records"])
def test_lists_of_inputs_stay_separate(kind):
    records = TFRecords(record_files(9), lambda batch: nested(numbers(batch)))
    source = Arrays(nested(np.arange(9))) if kind == "arrays" else records
    (inputs, labels), *_ = make_dataset(source, IndexStage(9, None, 0, (4,))).as_numpy_iterator()
    assert isinstance(inputs["in"], tuple) and isinstance(labels, tuple)  # No array of two rows.
    assert [part.tolist() for part in inputs["in"]] == [[0, 1, 2, 3], [0, 10, 20, 30]]
    assert [part.tolist() for part in labels] == [[0, 1, 2, 3]]


def test_what_every_method_of_a_dataset_does_to_batches_is_known():
    public = {name for name in dir(tf.data.Dataset) if not name.startswith("_")}
    assert public == {*NO_MOVE, *MOVES, *NOT_BEHIND}


@pytest.mark.parametrize("method", NO_MOVE)
def test_what_leaves_samples_in_their_batches_may_follow(method):
    assert moves_of(NO_MOVE[method](ours())) == []


@pytest.mark.parametrize("method", MOVES)
def test_what_moves_samples_to_other_batches_is_seen(method):
    after = MOVES[method]
    assert NAMED_OTHERWISE.get(method, method) in moves_of(after(ours()))
    assert moves_of(after(tf.data.Dataset.range(8).batch(2))) == []


def test_moves_are_named_from_the_last_to_the_first():
    assert moves_of(ours().unbatch().map(lambda x: x).batch(2)) == ["batch", "unbatch"]


def test_batches_in_any_order_are_seen():
    any_order = ours().map(lambda x: x, num_parallel_calls=2, deterministic=False)
    assert moves_of(any_order.prefetch(1)) == ["nondeterministic map"]
    options = tf.data.Options()
    options.deterministic = False
    assert moves_of(ours().with_options(options).map(one)) == ["nondeterministic with_options"]
