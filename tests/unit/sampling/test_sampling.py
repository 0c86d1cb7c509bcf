"""Every sample once, equal steps, the same global batches: whatever the plans are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dbs.sampling import (
    EpochOrder,
    PlanSchedule,
    ReadAhead,
    num_steps,
    step_batch_sizes,
    window,
)

plans = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(st.integers(1, 5000), st.none() | st.integers(0, 2**63), st.integers(0, 1000))
def test_an_epoch_holds_every_sample_once(num_samples, seed, epoch):
    indices = EpochOrder(num_samples, seed, epoch).indices(0, num_samples)
    assert indices.dtype == np.int64
    np.testing.assert_array_equal(np.sort(indices), np.arange(num_samples))


@given(st.integers(1, 500), st.integers(1, 60), st.integers(0, 99), st.none() | st.integers(0, 99))
def test_blocks_move_as_a_whole_and_hold_every_sample_once(num_samples, block_size, epoch, seed):
    indices = EpochOrder(num_samples, seed, epoch, block_size).indices(0, num_samples)
    np.testing.assert_array_equal(np.sort(indices), np.arange(num_samples))
    steps = np.diff(indices) % num_samples
    inside = np.arange(1, num_samples) % block_size != 0
    assert (steps[inside] == 1 % num_samples).all()
    if seed is None:
        assert (steps == 1 % num_samples).all()


def test_blocks_are_shuffled_and_cut_anew_each_epoch():
    orders = [EpochOrder(1003, 7, epoch, 10).indices(0, 1003) for epoch in range(50)]
    assert len({tuple(order[1000:]) for order in orders}) > 30  # Those that fill no block.
    assert len({int(order[0]) % 10 for order in orders}) > 5
    for order in orders:
        followers = (order[10:1000:10] - order[:990:10]) % 1003 == 10
        assert followers.mean() < 0.1


strides = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 4)), min_size=1, max_size=6)


@given(st.integers(1, 9000), st.integers(1, 500), st.none() | st.integers(0, 99), strides)
def test_reading_ahead_changes_nothing(num_samples, block_size, seed, strides):
    order = EpochOrder(num_samples, seed, 3, block_size)
    ahead, start = ReadAhead(order), 0
    for stride, times in strides:
        for length in [max(1, stride // 2), stride] * times:
            count = min(length, num_samples - start)
            np.testing.assert_array_equal(ahead.indices(start, count), order.indices(start, count))
            start = min(start + stride, num_samples)


@given(st.integers(1, 3000), st.integers(0, 99), st.data())
def test_any_part_of_an_epoch_is_a_part_of_the_whole(num_samples, epoch, data):
    order = EpochOrder(num_samples, 7, epoch)
    start = data.draw(st.integers(0, num_samples))
    count = data.draw(st.integers(0, num_samples - start))
    whole = order.indices(0, num_samples)
    np.testing.assert_array_equal(order.indices(start, count), whole[start : start + count])


def test_the_order_is_fixed_for_ever():
    # Ranks may run different releases of NumPy or of this package: the order may never change.
    assert EpochOrder(1797, 7, 0).indices(0, 5).tolist() == [989, 1153, 397, 346, 24]
    assert EpochOrder(10**12, 7, 3).indices(5 * 10**11, 2).tolist() == [
        109147516408,
        496879656246,
    ]


def test_orders_differ_by_seed_and_epoch_and_look_random():
    orders = [EpochOrder(1000, seed, epoch) for seed in (0, 1, -1) for epoch in range(3)]
    rows = np.stack([order.indices(0, 1000) for order in orders])
    agreement = (rows[:, None] == rows[None]).mean(axis=2)
    assert (agreement[~np.eye(len(rows), dtype=bool)] < 0.02).all()
    # Where a sample stands is uniform over epochs: chi square of 50 positions over 2,000 epochs.
    positions = np.stack([EpochOrder(50, 3, epoch).indices(0, 50) for epoch in range(2000)])
    counts = np.stack([(positions == sample).sum(axis=0) for sample in range(50)])
    assert ((counts - 40) ** 2 / 40).sum() / 49**2 < 1.2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 1, 0), "num_samples=0"),
        ((5, 1, -1), "epoch=-1"),
        ((5, 1, 0, 0), "block_size=0"),
    ],
)
def test_impossible_epochs_are_an_error(arguments, text):
    with pytest.raises(ValueError, match=text):
        EpochOrder(*arguments)


@pytest.mark.parametrize(("start", "count"), [(-1, 2), (4, 2), (0, 6), (0, -1)])
def test_positions_outside_of_the_epoch_are_an_error(start, count):
    with pytest.raises(ValueError, match="epoch of 5 samples"):
        EpochOrder(5, None, 0).indices(start, count)


@given(plans, st.integers(1, 500))
def test_windows_tile_each_global_batch(batch_sizes, num_samples):
    global_batch_size = sum(batch_sizes)
    steps = num_steps(num_samples, global_batch_size)
    seen: list[int] = []
    for step in range(steps):
        parts = [window(step, rank, batch_sizes, num_samples) for rank in range(len(batch_sizes))]
        counted = [i for part in parts for i in range(part.start, part.start + part.weight)]
        # Exactly the positions of the global batch, whatever the plan is.
        first = step * global_batch_size
        assert counted == list(range(first, min(first + global_batch_size, num_samples)))
        seen += counted
        for part, batch_size in zip(parts, batch_sizes, strict=True):
            assert part.weight in (0, part.count)
            assert 1 <= part.count <= batch_size  # Never empty, never more than a rank can hold.
            assert part.start + part.count <= num_samples
    assert seen == list(range(num_samples))


@given(plans, st.integers(1, 500))
def test_a_partial_step_is_split_as_a_full_one(batch_sizes, num_samples):
    global_batch_size = sum(batch_sizes)
    last = num_steps(num_samples, global_batch_size) - 1
    left = num_samples - last * global_batch_size
    for count, batch_size in zip(
        step_batch_sizes(last, batch_sizes, num_samples), batch_sizes, strict=True
    ):
        assert abs(count - left * batch_size / global_batch_size) < 1


def test_a_step_beyond_the_epoch_is_an_error():
    with pytest.raises(ValueError, match="epoch of 3 steps"):
        step_batch_sizes(3, (2, 2), 10)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), plans), max_size=12))
def test_a_schedule_remembers_what_was_published(entries):
    schedule = PlanSchedule((1,))
    expected = {(epoch, step): (1,) for epoch in range(6) for step in range(10)}
    for epoch, step, plan in entries:
        schedule.publish(tuple(plan), (epoch, step))
        for position in expected:
            if position >= (epoch, step):
                expected[position] = tuple(plan)
    assert {position: schedule.batch_sizes_at(position) for position in expected} == expected


def test_settled_positions_do_not_change():
    schedule = PlanSchedule((2, 2))
    schedule.settle((1, 0))
    with pytest.raises(ValueError, match="comes too late"):
        schedule.publish((3, 1), (0, 9))
    schedule.publish((3, 1), (1, 0))
    schedule.settle((9, 0))
    schedule.settle((2, 0))  # What is settled stays settled.
    assert schedule.horizon == (9, 0)
    assert schedule.batch_sizes_at((9, 0)) == (3, 1)
