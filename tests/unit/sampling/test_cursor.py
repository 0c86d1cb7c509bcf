"""What is left of an epoch is every sample that was not used, once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dbs.sampling import Cursor, EpochPart, merge_intervals, num_steps, window

intervals = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 20)), max_size=6).map(
    lambda rows: merge_intervals((start, start + length) for start, length in rows)
)


@given(intervals, st.integers(1, 40), st.data())
def test_a_part_holds_what_is_not_used_in_order(used, more, data):
    num_samples = (used[-1][1] if used else 0) + more
    part = EpochPart(num_samples, used)
    gone = {i for start, end in used for i in range(start, end)}
    left = [i for i in range(num_samples) if i not in gone]
    assert part.num_left == len(left)
    start = data.draw(st.integers(0, len(left)))
    count = data.draw(st.integers(0, len(left) - start))
    found = [i for first, last in part.positions(start, count) for i in range(first, last)]
    assert found == left[start : start + count]


@given(intervals, intervals)
def test_merged_intervals_are_a_cursor_of_the_same_positions(some, others):
    merged = merge_intervals([*some, *others])
    expected = {i for start, end in (*some, *others) for i in range(start, end)}
    assert Cursor(3, merged).num_used == len(expected)
    assert {i for start, end in merged for i in range(start, end)} == expected


plans = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(st.integers(1, 300), st.lists(st.tuples(plans, st.integers(0, 9)), max_size=5))
def test_an_epoch_taken_up_again_and_again_uses_every_position_once(num_samples, runs):
    """Each run has ranks and batch sizes of its own, and ends after some steps."""
    used: tuple[tuple[int, int], ...] = ()
    seen: list[int] = []
    for batch_sizes, most in [*runs, ((4, 1), num_samples)]:
        part = EpochPart(num_samples, used)
        steps = min(most, num_steps(part.num_left, sum(batch_sizes)))
        for step in range(steps):
            for rank in range(len(batch_sizes)):
                mine = window(step, rank, batch_sizes, part.num_left)
                places = part.positions(mine.start, mine.weight)
                seen += [i for first, last in places for i in range(first, last)]
        count = min(steps * sum(batch_sizes), part.num_left)
        used = merge_intervals([*used, *part.positions(0, count)])
    assert seen == list(range(num_samples))


@pytest.mark.parametrize("used", [((3, 3),), ((2, 1),), ((0, 2), (2, 3)), ((-1, 2),)])
def test_a_cursor_of_odd_intervals_is_an_error(used):
    with pytest.raises(ValueError, match="intervals in ascending order"):
        Cursor(0, used)


def test_what_is_outside_is_an_error():
    with pytest.raises(ValueError, match=r"epoch=-1"):
        Cursor(-1)
    with pytest.raises(ValueError, match="positions up to 11 are used of an epoch of 10"):
        EpochPart(10, ((0, 11),))
    with pytest.raises(ValueError, match="the 6 samples that are left"):
        EpochPart(10, ((0, 4),)).positions(5, 2)
