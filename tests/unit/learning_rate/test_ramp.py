"""The learning rate's way to another global batch size."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dbs.learning_rate.ramp import Ramp, RampState

positive = st.floats(1e-2, 1e2)


@pytest.mark.parametrize("k", [1 / 4, 1 / 2, 2, 4, 16])
def test_the_published_formula(k):
    ramp = Ramp(1.0, k)
    for i in range(300):
        expected = 1 + i * (k - 1) / (8 * k) if i < 8 * k else k
        assert ramp.multiplier(i) == pytest.approx(expected, rel=1e-14)
    assert ramp.multiplier(int(8 * k)) == k
    assert ramp.multiplier(int(8 * k) - 1) != k


@pytest.mark.parametrize(("k", "iterations"), [(2, 16), (16, 128), (1 / 2, 4), (1 / 8, 1)])
def test_how_long_it_takes(k, iterations):
    ramp = Ramp(1.0, k)
    assert min(i for i in range(200) if ramp.multiplier(i) == k) == iterations


def test_very_small_batches_begin_in_the_second_iteration():
    assert [Ramp(1.0, 1 / 16).multiplier(i) for i in range(3)] == [1.0, 1 / 16, 1 / 16]


@given(start=positive, target=positive, iterations=st.integers(0, 20))
def test_a_ramp_goes_one_way_and_ends_exactly(start, target, iterations):
    ramp = Ramp(start, target, iterations)
    values = [ramp.multiplier(i) for i in range(100)]
    assert values == sorted(values, reverse=target < start)
    assert all(min(start, target) <= value <= max(start, target) for value in values)
    assert ramp.multiplier(int(ramp.length) + 1) == target
    assert iterations > 0 or values[0] == target


@given(
    batch_sizes=st.lists(st.integers(1, 500), min_size=1, max_size=5),
    steps=st.lists(st.integers(0, 60), min_size=5, max_size=5),
    rule=st.sampled_from(["linear", "sqrt"]),
    ramps_down=st.booleans(),
)
def test_changes_during_a_ramp(batch_sizes, steps, rule, ramps_down):
    base, state, last = 60, RampState(60, rule, ramps_down=ramps_down), 1.0
    for batch_size, num_steps in zip(batch_sizes, steps, strict=False):
        before, state = state, state.resized(batch_size, state.num_iterations)
        k = batch_size / base
        assert state.ramp.target == (k if rule == "linear" else k**0.5)
        if state.ramp != before.ramp:
            assert state.num_iterations == 0
            is_ramp = ramps_down or state.ramp.target > last
            # Goes on from where it was, or falls at once.
            assert state.ramp.multiplier(0) == (last if is_ramp else state.ramp.target)
        for _ in range(num_steps):
            last = state.ramp.multiplier(state.num_iterations)
            state = replace(state, num_iterations=state.num_iterations + 1)
        assert state.ramp.reached(state.num_iterations) == last
    copy = RampState.from_state_dict(json.loads(json.dumps(state.state_dict())))
    assert copy == state


def test_a_rate_that_falls_is_set_at_once_unless_the_published_ramp_is_asked_for():
    at_once = RampState(64).resized(16, num_iterations=50).ramp
    assert [at_once.multiplier(i) for i in range(3)] == [0.25] * 3
    published = RampState(64, ramps_down=True).resized(16, num_iterations=50).ramp
    assert [published.multiplier(i) for i in range(3)] == [1.0, 0.625, 0.25]
    up_again = RampState(64).resized(16, num_iterations=50).resized(32, num_iterations=9).ramp
    assert [up_again.multiplier(i) for i in (0, 8, 16)] == [0.25, 0.375, 0.5]


def test_the_same_batch_size_again_changes_nothing():
    state = RampState(64).resized(128, num_iterations=3)
    assert state.resized(128, num_iterations=5) == RampState(64, ramp=state.ramp, num_iterations=5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "cubic"}, "Known: linear, sqrt"),
        ({"base_batch_size": 0}, "base_batch_size=0"),
        ({"num_iterations": -1}, "num_iterations=-1"),
        ({"num_iterations": "many"}, "num_iterations='many'"),
        ({"ramp_iterations": -8}, "ramp_iterations=-8"),
        ({"ramps_down": "yes"}, "ramps_down='yes'"),
        ({"ramp": {"start": 0.0, "target": 1.0, "ramp_iterations": 8}}, "start=0.0"),
        ({"ramp": {"start": 1.0, "target": None, "ramp_iterations": 8}}, "target=None"),
        ({"ramp": {"start": 1.0, "target": 1.0, "ramp_iterations": 1.5}}, "ramp_iterations=1.5"),
    ],
)
def test_a_damaged_state_is_an_error(change, message):
    state = RampState(64).state_dict()
    with pytest.raises(ValueError, match=message):
        RampState.from_state_dict({**state, **change})
