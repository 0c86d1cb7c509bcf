"""What each iterator is given, and when it has to wait."""

from __future__ import annotations

import queue
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.data import index_stage
from hvd_dbs.data.arrays import Arrays
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import make_dataset
from hvd_dbs.data.stream import Stream
from hvd_dbs.host import beside_training
from hvd_dbs.sampling import Cursor


class Reader:
    """Reads an iterator in a thread of its own, so that it may wait."""

    def __init__(self, stage):
        self._items = queue.Queue()
        self._thread = threading.Thread(target=self._run, args=(stage,), daemon=True)
        self._thread.start()

    def _run(self, stage):
        for item in stage():
            self._items.put(item.tolist())

    def take(self, count):
        return [self._items.get(timeout=10) for _ in range(count)]

    def waits(self):
        try:
            self._items.get(timeout=0.3)
        except queue.Empty:
            return self._thread.is_alive()
        return False

    def ends(self):
        self._thread.join(timeout=10)
        return not self._thread.is_alive()


def stage(batch_sizes=(2, 2), num_samples=10):
    return IndexStage(num_samples, seed=None, rank=1, batch_sizes=batch_sizes)


def test_outside_of_training_nothing_waits():
    one = stage()
    for _ in range(2):
        assert [item.tolist() for item in one()] == [[2, 3], [6, 7], [9]]


def test_training_waits_for_its_epochs_and_reads_their_plans():
    one = stage()
    one.begin_training((2, 2))
    reader = Reader(one)
    assert reader.waits()
    one.open_epoch(0, (3, 1), settled=3)
    assert reader.take(3) == [[3], [7], [8]]  # In the last step rank 1 has padding samples.
    assert reader.ends()
    early = Reader(one)  # Keras may ask for the next epoch before this one is over.
    assert early.waits()
    one.open_epoch(1, (1, 3), settled=3)
    assert early.take(3) == [[1, 2, 3], [5, 6, 7], [9]]


def test_an_extra_iterator_sees_the_open_epoch():
    one = stage()
    one.begin_training((2, 2))
    one.open_epoch(0, (3, 1), settled=3)
    assert next(one()).tolist() == [3]
    assert next(one()).tolist() == [3]


def test_the_end_of_training_wakes_who_waits():
    one = stage()
    one.begin_training((2, 2))
    reader = Reader(one)
    assert reader.waits()
    one.end_training((1, 3))
    assert reader.take(3) == [[1, 2, 3], [5, 6, 7], [9]]
    assert reader.ends()


def test_a_second_training_may_start_from_epoch_zero():
    one = stage()
    for plan in ((3, 1), (1, 3)):
        one.begin_training(plan)
        one.open_epoch(0, plan, settled=3)
        assert len(next(one())) == plan[1]
        one.end_training(plan)


def test_blocks_stay_together():
    one = IndexStage(24, seed=3, rank=0, batch_sizes=(8,), block_size=4)
    blocks = np.concatenate(list(one())).reshape(6, 4)
    assert ((np.diff(blocks) % 24) == 1).all()
    assert ((blocks[1:, 0] - blocks[:-1, 0]) % 24 != 4).any()


def test_a_data_set_follows_the_plan_without_a_retrace():
    one = IndexStage(10, seed=3, rank=0, batch_sizes=(2, 2))
    x = np.arange(10, dtype=np.float32)
    arrays = Arrays({"x": x, "pair": (x[:, None], -x)})
    assert arrays.num_samples == 10
    dataset = make_dataset(arrays, one)
    assert len(dataset) == 3
    assert dataset.element_spec["x"].shape.as_list() == [None]
    assert dataset.element_spec["pair"][0].shape.as_list() == [None, 1]
    traces = 0

    @tf.function(input_signature=[dataset.element_spec])
    def total(batch):
        nonlocal traces
        traces += 1
        return tf.reduce_sum(batch["x"]) + tf.reduce_sum(batch["pair"][1])

    one.begin_training((2, 2))
    sizes = []
    for epoch, plan in enumerate([(2, 2), (3, 1), (1, 3)]):
        one.open_epoch(epoch, plan, settled=3)
        for batch in dataset:
            assert total(batch).numpy() == 0
            np.testing.assert_array_equal(batch["pair"][0][:, 0], batch["x"])
            sizes.append(len(batch["x"]))
    assert sizes == [2, 2, 1, 3, 3, 2, 1, 1, 1]
    assert traces == 1


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ((np.zeros(3), np.zeros(4)), r"\[3, 4\] samples"),
        (np.zeros((0, 2)), r"\[0\] samples"),
        (3.0, "first dimension counts the samples"),
        ((), "first dimension counts the samples"),
        ([1.0] * 100, r"100 leaves, of shapes \(\)(, \(\)){7}, \.\.\.; expected arrays"),
    ],
)
def test_sources_without_a_common_length_are_an_error(source, text):
    with pytest.raises(ValueError, match=text):
        Arrays(source)


def test_an_epoch_taken_up_in_its_midst_is_shorter_and_the_next_is_whole():
    one = stage()
    source = Arrays(np.arange(10))
    dataset = make_dataset(source, one)
    one.start_at(Cursor(4, ((0, 3), (5, 6))))
    one.begin_training((3, 1))
    one.open_epoch(4, (3, 1), settled=9)
    assert len(dataset) == 3  # Of a whole epoch: what Keras is to know.
    assert one.num_steps_in(4) == 2
    assert [batch.numpy().tolist() for batch in dataset] == [[7], [8]]  # The last one is padding.
    assert one.cursor_after(4, 1) == Cursor(4, ((0, 8),))
    assert one.cursor_after(4, 2) == Cursor(5)
    one.open_epoch(5, (3, 1), settled=9)
    assert [batch.numpy().tolist() for batch in dataset] == [[3], [7], [8]]


SOURCES = {
    "read by number": Arrays(np.arange(10)),
    "read in passes": Stream(tf.data.Dataset.range(10), num_samples=10).source(4),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("prepares", [False, True])
def test_who_leaves_a_loop_in_mid_epoch_is_let_go(source, prepares):
    """Letting go of an iterator waits for what it has asked for, which nobody settles then."""
    one = stage()
    dataset = make_dataset(source, one)
    if prepares:
        dataset = dataset.map(lambda x: x, num_parallel_calls=2).prefetch(2)
    one.begin_training((2, 2))
    one.open_epoch(0, (2, 2), settled=2)

    def leave():
        for _ in dataset:
            time.sleep(0.3)  # The third step is asked for meanwhile.
            break

    thread = threading.Thread(target=leave, daemon=True)
    thread.start()
    thread.join(timeout=10)
    is_let_go = not thread.is_alive()
    one.end_training((2, 2))
    assert is_let_go
    assert sum(len(batch) for batch in dataset) >= 5  # And the next one reads it again.


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_whoever_waits_for_long_reads_the_same(source, monkeypatch):
    """What is told meanwhile, to ask again, is no sample."""
    monkeypatch.setattr(index_stage, "_PATIENCE", 0.02)
    one = stage()
    dataset = make_dataset(source, one)
    one.begin_training((2, 2))
    one.open_epoch(0, (2, 2), settled=1)
    timer = threading.Timer(0.3, one.settle, (3,))
    timer.start()
    assert [batch.numpy().tolist() for batch in dataset] == [[2, 3], [6, 7], [9]]
    timer.join()


def test_who_waited_for_a_step_reads_it_once_the_next_one_has_begun(monkeypatch):
    now, slept = [100.0], queue.Queue()
    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=slept.put)
    monkeypatch.setattr(beside_training, "time", clock)
    one = stage()
    one.begin_training((2, 2))
    one.open_epoch(0, (2, 2), settled=2)
    reader = Reader(one)
    assert reader.take(2) == [[2, 3], [6, 7]]
    assert slept.empty()
    assert reader.waits()
    now[0] += 0.02
    one.settle(3)
    assert reader.take(1) == [[9]]
    assert slept.get_nowait() == pytest.approx(0.001)
    reader = Reader(one)  # Training waits for the first step of an epoch.
    assert reader.waits()
    now[0] += 5.0
    one.open_epoch(1, (2, 2), settled=3)
    reader.take(3)
    assert slept.get_nowait() == 0


def test_a_repeated_data_set_goes_on_with_the_whole_next_epoch():
    one = stage()
    dataset = make_dataset(Arrays(np.arange(10)), one).repeat()
    one.start_at(Cursor(0, ((0, 8),)))
    one.begin_training((3, 1))
    one.open_epoch(0, (3, 1), settled=9)
    batches = iter(dataset)
    assert next(batches).numpy().tolist() == [8]  # Padding.
    one.open_epoch(1, (3, 1), settled=9)
    assert [next(batches).numpy().tolist() for _ in range(3)] == [[3], [7], [8]]
