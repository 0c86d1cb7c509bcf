"""How many rounds and steps of a measurement fit into the minutes that it is given."""

from __future__ import annotations

import argparse
import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from benchmarks import time_budget
from benchmarks.time_budget import TimeBudget, minutes, steps_that_fit


class Clock:
    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


def run(budget_minutes, round_seconds, least=1, most=math.inf, before=0.0):
    """The seconds when all is over, the rounds that were run, and what was said."""
    clock, said = Clock(), []
    budget = TimeBudget(budget_minutes, say=said.append, begun=clock.seconds, now=clock)
    clock.seconds += before
    numbers = []
    for number in budget.rounds(least, most):
        numbers.append(number)
        clock.seconds += round_seconds[number % len(round_seconds)]
    assert numbers == list(range(len(numbers)))
    return clock.seconds - 1000, len(numbers), said


def test_rounds_end_before_the_time_does():
    assert run(1, [7.0]) == (56.0, 8, [])
    assert run(1, [7.0], before=30.0)[1] == 4


def test_another_round_is_as_long_as_the_longest_one():
    assert run(1, [1.0, 30.0, 1.0])[1] == 2  # 29 s are left then.


def test_all_rounds_run_without_a_budget_and_the_least_ones_with_any():
    assert run(None, [7.0], most=30)[1] == 30
    assert run(0.1, [7.0], least=3, most=30)[1] == 3
    assert run(0.1, [7.0], least=3, most=2)[1] == 2


def test_what_is_left_is_said_after_the_first_round():
    assert run(None, [6.0], most=31)[2] == ["about 3.0 minutes to go"]
    assert run(1, [6.0], most=31)[2] == ["about 0.9 minutes to go"]
    assert run(None, [6.0], most=1)[2] == []


def test_all_ranks_stop_by_the_clock_of_rank_0():
    clock, late = Clock(), Clock()
    late.seconds = 5000.0
    first = TimeBudget(1, begun=1000.0, now=clock)
    other = TimeBudget(1, lambda _: first.seconds_used, begun=0.0, now=late)
    assert other.seconds_left == first.seconds_left == 60.0
    assert len(list(zip(other.rounds(0, 5), range(9), strict=False))) == 5


def test_the_minutes_begin_with_the_process():
    assert 0.0 < TimeBudget(1).seconds_used < 24 * 3600


@given(some.floats(-10, 1e4), some.floats(1e-4, 10), some.integers(1, 20), some.integers(1, 8))
def test_steps_fit_unless_they_are_the_least(seconds, step_seconds, num_rounds, least):
    steps = steps_that_fit(seconds, step_seconds, num_rounds, least=least, most=24)
    assert least <= steps <= 24
    assert steps == least or steps * num_rounds * step_seconds <= seconds * (1 + 1e-9)
    assert steps == 24 or (steps + 1) * num_rounds * step_seconds > seconds * (1 - 1e-9)


def test_the_example_runs():
    assert doctest.testmod(time_budget) == (0, 2)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf"])
def test_other_minutes_are_an_error_with_a_way_out(text):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        minutes(text)
    assert repr(text) in str(caught.value)
    assert "Give for example --minutes 3." in str(caught.value)


def test_minutes_may_be_a_part_of_one():
    assert minutes("0.5") == 0.5
