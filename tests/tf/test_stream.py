"""tf.data data sets as sources: finite ones by windows, endless ones by batch size."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.data import Stream
from hvd_dbs.data.evaluation_stage import Evaluation, EvaluationStage
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import as_source, make_dataset, require_usable
from hvd_dbs.sampling import Cursor, step_batch_sizes


def nested(n):
    numbers = tf.data.Dataset.range(n)
    return numbers.map(lambda i: ({"a": i, "text": tf.strings.as_string(i)}, tf.fill([2], i)))


def test_a_window_of_each_global_batch_in_any_nesting():
    source = as_source(Stream(nested(10)), 4)
    assert source.num_samples == 10
    stage = IndexStage(10, seed=None, rank=1, batch_sizes=(1, 3))
    batches = list(make_dataset(source, stage).as_numpy_iterator())
    assert [x["a"].tolist() for x, _ in batches] == [[1, 2, 3], [5, 6, 7], [9]]
    assert [x["text"].tolist() for x, _ in batches][2] == [b"9"]
    assert batches[0][1].shape == (3, 2)
    assert len(make_dataset(source, stage)) == 3
    # After the window there is no work on samples of other ranks.
    seen = []
    mapped = make_dataset(source, stage).map(
        lambda x, y: tf.numpy_function(lambda a: seen.extend(a.tolist()) or a, [x["a"]], tf.int64)
    )
    list(mapped)
    assert seen == [1, 2, 3, 5, 6, 7, 9]


def test_a_stream_of_unknown_length():
    filtered = tf.data.Dataset.range(20).filter(lambda i: i % 2 == 0)
    with pytest.raises(ValueError, match="num_samples"):
        as_source(Stream(filtered), 4)
    source = as_source(Stream(filtered, num_samples=10), 4)
    stage = IndexStage(10, seed=None, rank=0, batch_sizes=(4,))
    assert np.concatenate(list(make_dataset(source, stage))).tolist() == list(range(0, 20, 2))
    for num_samples, stream in ((12, filtered), (13, filtered), (12, filtered.take(8))):
        too_short = as_source(Stream(stream, num_samples=num_samples), 4)
        has = 8 if stream is not filtered else 10
        said = f"The stream has {has} samples, num_samples={num_samples} was given"
        evaluation = EvaluationStage(num_samples, lambda: 0, lambda: (4,), Evaluation())
        training = [IndexStage(num_samples, None, rank, (1, 3)) for rank in (0, 1)]
        for stage in (*training, evaluation):
            with pytest.raises(tf.errors.OpError, match=said):
                list(make_dataset(too_short, stage))


def test_an_epoch_is_taken_up_in_its_midst():
    """After any position, by any global batch size."""
    for used, total in ((8, 4), (5, 7), (11, 4)):
        source = as_source(Stream(nested(12)), total)
        stages = [
            IndexStage(12, seed=None, rank=rank, batch_sizes=(total - 1, 1)) for rank in (0, 1)
        ]
        left = []
        for stage in stages:
            dataset = make_dataset(source, stage).map(lambda x, y: x["a"])
            stage.start_at(Cursor(2, ((0, used),)))
            stage.begin_training((total - 1, 1))
            stage.open_epoch(2, (total - 1, 1), settled=9)
            left.append([batch.tolist() for batch in dataset.as_numpy_iterator()])
            assert len(dataset) == -(-12 // total)  # What Keras is to know.
            stage.open_epoch(3, (total - 1, 1), settled=9)
            assert len(list(dataset)) == -(-12 // total)
            stage.end_training((total - 1, 1))
        expected = list(range(used, 12))
        counts = [step_batch_sizes(s, (total - 1, 1), 12 - used) for s in range(len(left[0]))]
        read = [
            sample
            for parts, count in zip(zip(*left, strict=True), counts, strict=True)
            for part, many in zip(parts, count, strict=True)
            for sample in part[:many]
        ]
        assert read == expected


def test_a_stream_follows_the_global_batch_size():
    """Once, its windows kept the size that they had when the data set was made."""
    source = as_source(Stream(nested(12)), 4)
    stage = IndexStage(12, seed=None, rank=1, batch_sizes=(3, 1))
    dataset = make_dataset(source, stage).map(lambda x, y: x["a"])
    stage.begin_training((3, 1))
    stage.open_epoch(0, (3, 1), settled=9)
    assert [batch.tolist() for batch in dataset.as_numpy_iterator()] == [[3], [7], [11]]
    stage.resize((5, 3))
    stage.open_epoch(1, (5, 3), settled=9)
    assert [batch.tolist() for batch in dataset.as_numpy_iterator()] == [[5, 6, 7], [11]]


def test_what_was_used_must_be_the_beginning():
    source = as_source(Stream(tf.data.Dataset.range(12)), 4)
    stage = IndexStage(12, seed=None, rank=0, batch_sizes=(4,))
    stage.start_at(Cursor(0, ((0, 2), (5, 6))))  # By contiguous shards, from arrays.
    with pytest.raises(tf.errors.InvalidArgumentError, match="not the first ones of the stream"):
        list(make_dataset(source, stage))


@pytest.mark.parametrize("place", [0, 3, 4, 11])
def test_an_error_of_the_users_own_says_what_the_user_wrote(place):
    """On all ranks that read so far, whoever the sample is of; never what tf.data makes of it."""

    def samples():
        for number in range(12):
            if number == place:
                raise KeyError("no such picture")
            yield number

    def look_up(number):
        if number == place:
            raise KeyError("no such picture")
        return number

    spec = tf.TensorSpec([], tf.int64)
    for stream in (
        tf.data.Dataset.from_generator(samples, output_signature=spec),
        tf.data.Dataset.range(12).map(lambda i: tf.numpy_function(look_up, [i], tf.int64)),
    ):
        source = as_source(Stream(stream, num_samples=12), 4)
        for rank in (0, 1):
            stage = IndexStage(12, seed=None, rank=rank, batch_sizes=(2, 2))
            with pytest.raises(tf.errors.OpError, match="KeyError: 'no such picture'"):
                list(make_dataset(source, stage))


def test_ragged_samples():
    lengths = [3, 0, 2, 5, 1]
    ragged = tf.RaggedTensor.from_row_lengths(tf.range(11), lengths)
    source = as_source(Stream(tf.data.Dataset.from_tensor_slices((ragged, lengths))), 3)
    stage = IndexStage(5, seed=None, rank=1, batch_sizes=(1, 2))
    batches = list(make_dataset(source, stage))
    assert [rows.to_list() for rows, _ in batches] == [[[], [3, 4]], [[10]]]
    assert [counts.numpy().tolist() for _, counts in batches] == [[0, 2], [1]]


@pytest.mark.parametrize("ends", [False, True])
def test_an_endless_stream_goes_on_through_epochs_and_plans(ends):
    numbers = tf.data.Dataset.range(17) if ends else tf.data.Dataset.counter()
    source = as_source(Stream(numbers, steps_per_epoch=3), 8)
    assert source.num_samples == 24
    stage = IndexStage(24, seed=None, rank=1, batch_sizes=(4, 4))
    dataset = make_dataset(source, stage)
    assert dataset.cardinality() < 0  # Keras asks for steps_per_epoch.
    stage.begin_training((4, 4))
    iterator = iter(dataset)
    batches = []
    for epoch, plan in enumerate([(4, 4), (2, 6), (7, 1), (1, 7)]):
        stage.open_epoch(epoch, plan, settled=3)
        batches += [next(iterator).numpy() for _ in range(3)]
    stage.end_training((4, 4))
    assert [len(batch) for batch in batches] == [4] * 3 + [6] * 3 + [1] * 3 + [7] * 3
    expected = np.arange(3 * 18)
    assert np.concatenate(batches).tolist() == (expected % 17 if ends else expected).tolist()


@pytest.mark.parametrize("repeats", [True, False])
def test_an_endless_stream_without_samples_is_an_error(repeats):
    """Its rank would end the epoch at once, and the others wait for it."""
    empty = nested(9).filter(lambda *_: False)
    source = as_source(Stream(empty.repeat() if repeats else empty, steps_per_epoch=3), 4)
    stage = IndexStage(source.num_samples, None, 0, (4,))
    with pytest.raises(tf.errors.OpError, match="The stream of this rank has no samples"):
        next(iter(make_dataset(source, stage)))


@pytest.mark.parametrize(
    ("stream", "error", "text"),
    [
        (Stream([1, 2]), TypeError, "dataset is a list"),
        (Stream(tf.data.Dataset.counter()), ValueError, "steps_per_epoch"),
        (Stream(tf.data.Dataset.range(0)), ValueError, "0 samples"),
        (Stream(tf.data.Dataset.range(3), num_samples=4), ValueError, "at least 4"),
        (Stream(tf.data.Dataset.range(3), num_samples=0), ValueError, "num_samples=0"),
        (Stream(tf.data.Dataset.range(3), num_samples=3e0), ValueError, "num_samples=3.0 must be"),
        (Stream(tf.data.Dataset.range(3), num_samples=2, steps_per_epoch=2), ValueError, "one of"),
    ],
)
def test_streams_that_cannot_be_read(stream, error, text):
    with pytest.raises(error, match=text):
        as_source(stream, 4)


def test_what_a_stream_is_not_for():
    source = as_source(Stream(tf.data.Dataset.range(3)), 2)
    require_usable(source, None, training=True)
    with pytest.raises(ValueError, match="Shuffle the stream itself"):
        require_usable(source, 7, training=True)
    require_usable(source, None, training=False)
    endless = as_source(Stream(tf.data.Dataset.range(3), steps_per_epoch=2), 2)
    with pytest.raises(ValueError, match="plain validation data"):
        require_usable(endless, None, training=False)


ON_ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import keras, numpy as np, tensorflow as tf
import hvd_dbs.keras as hvd
hvd.init()
balancer = hvd.Balancer(8)
samples = tf.data.Dataset.from_tensor_slices((np.ones((8, 3), "f4"), np.ones(8, "f4"))).repeat()
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), balancer=balancer), "mse")
dataset = balancer.dataset(hvd.data.Stream(samples, steps_per_epoch=3))
plain = lambda x, y: (x, tf.ensure_shape(tf.numpy_function(lambda a: a, [y], tf.float32), [None]))
callback = hvd.callbacks.DynamicBatchSizeCallback(balancer)
model.fit(dataset.map(plain), epochs=3, steps_per_epoch=3, verbose=0, callbacks=[callback])
print("trained")
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_process_bound_to_one_core_does_not_wait_for_itself():
    """The stage waits for the next epoch's plan, while the step needs a thread to run on."""
    run = subprocess.run(
        [sys.executable, "-c", ON_ONE_CORE],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.stdout == "trained\n", run.stderr[-2000:]
