"""Objects with `__len__` and `__getitem__` as sources."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_dbs.data import RandomAccess


def read(source, *batches):
    """What the source gives for batches of sample numbers."""
    assert source.num_samples >= 1
    indices = tf.data.Dataset.from_generator(
        lambda: (np.array(batch) for batch in batches),
        output_signature=tf.TensorSpec([None], tf.int64),
    )
    dataset = source.batches(indices)
    for leaf in tf.nest.flatten(dataset.element_spec):
        assert leaf.shape[0] is None
    return list(dataset.as_numpy_iterator())


class Samples:
    """Samples i -> (i, text of i); notes who reads what."""

    def __init__(self, num_samples):
        self.num_samples = num_samples
        self.read, self.threads = [], set()

    def __len__(self):
        return self.num_samples

    def __getitem__(self, number):
        self.read.append(number)
        self.threads.add(threading.current_thread().name)
        return {"number": number, "text": str(number), "image": np.full((2, 3), number, np.uint8)}


class Batches(keras.utils.PyDataset):
    """Batches of 4 out of the numbers below n."""

    def __init__(self, n, **options):
        super().__init__(**options)
        self.n, self.read = n, []

    def __len__(self):
        return (self.n + 3) // 4

    def __getitem__(self, number):
        self.read.append(number)
        samples = np.arange(4 * number, min(4 * number + 4, self.n))
        return [samples.astype(np.float32)[:, None], samples], -samples


@pytest.mark.parametrize("num_threads", [1, 5, None])
def test_samples_come_in_the_order_asked_for(num_threads):
    source = Samples(40)
    batches = [[3, 1, 39], [7], [0, 0, 2, 8]]
    for given_numbers, batch in zip(
        batches, read(RandomAccess(source, num_threads=num_threads), *batches), strict=True
    ):
        assert batch["number"].tolist() == given_numbers
        assert batch["number"].dtype == np.int32
        assert [text.decode() for text in batch["text"]] == list(map(str, given_numbers))
        assert batch["image"].dtype == np.uint8
        assert (batch["image"] == np.array(given_numbers)[:, None, None]).all()
    in_pool = {name for name in source.threads if name.startswith("hvd_dbs_read")}
    assert bool(in_pool) == (num_threads != 1)


@settings(max_examples=25)
@given(st.data())
def test_rows_of_a_py_dataset_are_samples(data):
    n = data.draw(st.integers(1, 30))
    sample = st.integers(0, n - 1)
    batches = data.draw(st.lists(st.lists(sample, min_size=1, max_size=12), min_size=1, max_size=3))
    batches_of_4 = Batches(n)
    source = RandomAccess(batches_of_4)
    assert source.num_samples == n
    assert source.block_size == min(4, n)
    batches_of_4.read.clear()
    for numbers, ((column, same), negative) in zip(batches, read(source, *batches), strict=True):
        assert column.dtype == np.float32
        assert column[:, 0].tolist() == same.tolist() == (-negative).tolist() == numbers
    items = [number for batch in batches for number in sorted({i // 4 for i in batch})]
    # Item 0 once more, for its size.
    assert sorted(batches_of_4.read[1:]) == sorted(items)


def test_batch_reads_where_offered():
    class Many(Samples):
        def __getitems__(self, numbers):
            return [(number, b"\x00bytes\x00") for number in numbers]

        def __getitem__(self, number):
            return str(number), b"in another type"

    ((numbers, texts),) = read(RandomAccess(Many(9)), [8, 2])
    assert numbers.tolist() == [8, 2]
    assert texts.tolist() == [b"\x00bytes\x00"] * 2


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([1, 2.5], "item 1 has float64"),
        ([1, 3_000_000_000], r"item 1 has int64 of shape \(\) where item 0 has int32"),
        ([np.float32(1), np.float64(1)], "item 1 has float64"),
        ([np.zeros(2), np.zeros(3)], r"item 1 has float64 of shape \(3,\)"),
        ([(1, 2), (1,)], "item 1 is nested differently"),
        (["text", 3], "item 1 has object"),
        (
            [(1, {"a": 2}), (1, {"a": None})],
            r"item 1 has None at \[1\]\['a'\] where item 0 has int",
        ),
    ],
)
def test_items_that_do_not_look_like_the_first(items, text):
    with pytest.raises(tf.errors.OpError, match=text):
        read(RandomAccess(items), [0, 1])


@pytest.mark.parametrize(
    ("source", "options", "error", "text"),
    [
        ([], {}, ValueError, "no items"),
        (iter([1]), {}, TypeError, "without __len__ and __getitem__"),
        ([1], {"num_threads": 0}, ValueError, "num_threads=0"),
        ([()], {}, ValueError, r"item 0 is \(\)"),
        ([(1, {"a": None})], {}, ValueError, r"item 0 has None at \[1\]\['a'\]; expected numbers"),
        ([{"a": set}], {}, ValueError, r"item 0 has the type <class 'set'> at \['a'\]"),
        ([None], {}, ValueError, "item 0 has None; expected numbers"),
        ([1], {"batched": True}, ValueError, "value 1 in it"),
        ([(np.zeros(2), np.zeros(3))], {"batched": True}, ValueError, r"\[2, 3\] samples"),
    ],
)
def test_sources_that_cannot_be_read(source, options, error, text):
    with pytest.raises(error, match=text):
        assert RandomAccess(source, **options).num_samples


class Failing:
    """Three items, of which one cannot be read."""

    def __init__(self, error, failing=2):
        self.error, self.failing = error, failing

    def __len__(self):
        return 3

    def __getitem__(self, number):
        if number == self.failing:
            raise self.error
        return number


class FailingInMany(Failing):
    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


class TooFew(Failing):
    def __getitems__(self, numbers):
        return numbers[: len(numbers) // 2 or 1]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (Failing(KeyError("gone")), "item 2 cannot be read: __getitem__ raised KeyError: 'gone'"),
        (Failing(StopIteration()), "item 2 cannot be read: __getitem__ raised StopIteration"),
        (FailingInMany(OSError("no disk")), "items 1, 2 cannot be read: __getitems__ raised OSErr"),
        (TooFew(None), "TooFew was asked for 2 items and returned 1"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(source, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        read(RandomAccess(source), [1, 2])


def test_item_0_that_cannot_be_read_is_named():
    with pytest.raises(ValueError, match="item 0 cannot be read: __getitem__ raised OSError"):
        assert RandomAccess(Failing(OSError("no disk"), failing=0)).num_samples


def test_items_of_different_sizes():
    items = [np.zeros(3), np.zeros(2), np.zeros(3)]
    with pytest.raises(tf.errors.OpError, match="item 1 has 2 samples, item 0 has 3"):
        read(RandomAccess(items, batched=True), [4])
    with pytest.raises(ValueError, match="item 1, the last, has 3 samples, item 0 has 2"):
        assert RandomAccess(items[1:], batched=True).num_samples


def test_a_real_array_record_file(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module")
    data_source = pytest.importorskip("array_record.python.array_record_data_source")
    records = [bytes([i]) * (i % 5) + b"\x00" for i in range(23)]
    for part, mine in enumerate((records[:9], records[9:])):
        writer = module.ArrayRecordWriter(str(tmp_path / f"{part}.array_record"), "group_size:1")
        for record in mine:
            writer.write(record)
        writer.close()
    source = data_source.ArrayRecordDataSource(
        [str(tmp_path / f"{i}.array_record") for i in (0, 1)]
    )
    samples = RandomAccess(source)
    assert samples.num_samples == 23
    numbers = [22, 0, 8, 9, 3]
    (batch,) = read(samples, numbers)
    assert batch.tolist() == [records[i] for i in numbers]


def test_data_sources_of_grain():
    grain = pytest.importorskip("grain")
    ranged = RandomAccess(grain.sources.RangeDataSource(0, 100, 3))
    assert ranged.num_samples == 34
    assert read(ranged, [33, 0])[0].tolist() == [99, 0]
    mapped = grain.MapDataset.source(np.arange(20)).map(lambda x: {"x": x, "square": x * x})
    (batch,) = read(RandomAccess(mapped), [4, 19])
    assert batch["square"].tolist() == [16, 361]
