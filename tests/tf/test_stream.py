"""tf.data data sets as sources: finite ones by windows, endless ones by batch size."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.data import Stream
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import as_source, make_dataset, require_usable


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
    # Behind the window there is no work on samples of other ranks.
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
    for num_samples in (12, 13):
        too_short = as_source(Stream(filtered, num_samples=num_samples), 4)
        stage = IndexStage(num_samples, seed=None, rank=0, batch_sizes=(4,))
        with pytest.raises(tf.errors.OpError, match="expected to contain 4"):
            list(make_dataset(too_short, stage))


def test_a_stream_is_not_read_from_its_middle():
    source = as_source(Stream(tf.data.Dataset.range(12)), 4)
    later = tf.data.Dataset.from_tensors(np.arange(4, 8))
    with pytest.raises(tf.errors.InvalidArgumentError, match="from its beginning"):
        list(source.batches(later))


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


@pytest.mark.parametrize(
    ("stream", "error", "text"),
    [
        (Stream([1, 2]), TypeError, "dataset is a list"),
        (Stream(tf.data.Dataset.counter()), ValueError, "steps_per_epoch"),
        (Stream(tf.data.Dataset.range(0)), ValueError, "0 samples"),
        (Stream(tf.data.Dataset.range(3), num_samples=4), ValueError, "at least 4"),
        (Stream(tf.data.Dataset.range(3), num_samples=0), ValueError, "num_samples=0"),
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
    with pytest.raises(ValueError, match="plain validation data"):
        require_usable(source, None, training=False)
