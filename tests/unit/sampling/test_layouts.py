"""Whatever the layout: each position once, and the same counts in each step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dbs.sampling import LAYOUTS, num_steps, step_batch_sizes

PLANS = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@pytest.mark.parametrize("name", LAYOUTS)
@given(PLANS, st.integers(1, 120))
def test_each_position_once_and_the_plans_counts(name, plan, num_samples):
    layout = LAYOUTS[name]
    seen = np.zeros(num_samples, dtype=int)
    for step in range(num_steps(num_samples, sum(plan))):
        counts = step_batch_sizes(step, plan, num_samples)
        for rank, count in enumerate(counts):
            part = layout.window(step, rank, plan, num_samples)
            assert part.weight == count
            assert part.count >= 1
            assert 0 <= part.start <= part.start + part.count <= num_samples
            seen[part.start : part.start + part.weight] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("name", LAYOUTS)
@given(PLANS, st.integers(1, 120), st.integers(0, 30))
def test_used_is_what_was_read(name, plan, num_samples, steps):
    layout = LAYOUTS[name]
    steps = min(steps, num_steps(num_samples, sum(plan)))
    read = set()
    for step in range(steps):
        for rank in range(len(plan)):
            part = layout.window(step, rank, plan, num_samples)
            read.update(range(part.start, part.start + part.weight))
    used = layout.used(steps, plan, num_samples)
    assert read == {position for start, end in used for position in range(start, end)}


@given(PLANS, st.integers(1, 120))
def test_contiguous_pieces_are_consecutive(plan, num_samples):
    for rank in range(len(plan)):
        windows = [
            LAYOUTS["contiguous"].window(step, rank, plan, num_samples)
            for step in range(num_steps(num_samples, sum(plan)))
        ]
        read = [part for part in windows if part.weight]
        ends = [part.start + part.count for part in read]
        assert [part.start for part in read[1:]] == ends[:-1]
