"""The first plan by what earlier trainings measured, and what is kept of measurements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dbs.balancing import Bounds, Plan
from hvd_dbs.balancing.first_plan import first_plan
from hvd_dbs.balancing.measured_speeds import MeasuredSpeeds
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.speed_points import MOST_POINTS, SpeedPoint, curves_through, merged


def line(per_sample, *batch_sizes, fixed=0.0):
    return [SpeedPoint(size, fixed + per_sample * size) for size in batch_sizes]


def even_problem(total, size, **bounds):
    limits = Bounds.of(size, **{"minimum": 1, **bounds})
    return Problem(total, limits, Plan.proportional(total, [1] * size, limits))


SPEEDS = {"fast": line(1, 8, 16, 64), "slow": line(3, 8, 16, 64)}


def test_all_finish_together():
    plan = first_plan(even_problem(63, 3), SPEEDS, ["slow", "fast", "fast"])
    assert plan.batch_sizes == (9, 27, 27)


def test_bounds_hold():
    problem = even_problem(64, 3, maximum=[None, 20, None], multiple_of=4)
    plan = first_plan(problem, SPEEDS, ["slow", "fast", "fast"])
    assert plan.batch_sizes[1] == 20 and problem.bounds.allow(plan.samples)


def test_a_kind_that_was_not_measured_counts_as_the_one_in_the_middle():
    speeds = {**SPEEDS, "slowest": line(9, 8, 16, 64)}
    plan = first_plan(even_problem(130, 4), speeds, ["slow", "new", "fast", "slowest"])
    assert plan.batch_sizes[1] == plan.batch_sizes[0] < plan.batch_sizes[2]
    # Kinds of other jobs do not count.
    plan = first_plan(even_problem(130, 3), speeds, ["fast", "new", "slow"])
    assert plan.batch_sizes[1] == plan.batch_sizes[0] > plan.batch_sizes[2]


@pytest.mark.parametrize("classes", [["new", "newer"], ["fast", "fast"], ["", "new"]])
def test_nothing_known_or_nothing_to_gain_begins_even(classes):
    assert first_plan(even_problem(64, 2), SPEEDS, classes) is None


def test_a_fixed_part_of_a_step_is_seen():
    """In proportion to speeds it would be (22, 42) or more."""
    speeds = {"fast": line(1, 16, 64, fixed=20), "slow": line(3, 16, 64, fixed=20)}
    assert first_plan(even_problem(64, 2), speeds, ["slow", "fast"]).batch_sizes == (16, 48)


points = st.builds(SpeedPoint, st.integers(1, 300), st.floats(1e-6, 1e3), count=st.integers(1, 200))
some_points = st.lists(points, max_size=12, unique_by=lambda point: point.batch_size)


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from(["a", "b"]), some_points),
)
def test_any_points_give_a_plan_or_none(classes, speeds):
    problem = even_problem(60, len(classes), maximum=60)
    plan = first_plan(problem, speeds, classes)
    assert plan is None or problem.bounds.allow(plan.samples)
    assert plan is None or plan.global_batch_size == 60


@given(some_points, some_points)
def test_few_points_are_kept_the_new_ones_first(old, new):
    kept = merged(old, new)
    assert len(kept) <= MOST_POINTS and set(kept) <= {*old, *new}
    assert len({point.batch_size for point in kept}) == len(kept)
    assert len([point for point in new if point in kept]) == min(len(new), MOST_POINTS)
    assert [point.batch_size for point in kept] == sorted(point.batch_size for point in kept)


def test_old_points_stay_unless_they_are_of_another_pace():
    old = [SpeedPoint(8, 0.8), SpeedPoint(16, 9.9), SpeedPoint(32, 3.2)]
    new = [SpeedPoint(24, 2.4), SpeedPoint(32, 3.0)]
    assert merged(old, new) == [SpeedPoint(8, 0.8), SpeedPoint(24, 2.4), SpeedPoint(32, 3.0)]
    assert merged(old, []) == old


def test_points_are_met_and_curves_go_on_beyond_them():
    curves = curves_through([line(1, 8, 16), [SpeedPoint(10, 5.0)]])
    assert curves.seconds(np.array([12.0, 10.0])).tolist() == [12.0, 5.0]
    more, less = curves.seconds(np.array([32.0, 20.0])), curves.seconds(np.array([4.0, 5.0]))
    assert 16 < more[0] <= 32 and 5 < more[1] < 10
    assert 0 < less[0] < 8 and 2.5 < less[1] < 5


@pytest.mark.parametrize("values", [(0, 1.0, 1), (8, 0.0, 1), (8, float("nan"), 1), (8, 1.0, 0)])
def test_points_that_cannot_be_are_refused(values):
    with pytest.raises(ValueError, match=r"positive|how long a step takes"):
        SpeedPoint(*values)


def test_rounds_are_gathered_by_kind_and_batch_size():
    speeds = MeasuredSpeeds(["a", "b", "a", ""])
    for busy in ([1, 5, 3, 9], [2, np.nan, -1, 9], [9, 1e9, 3, 9]):
        speeds.add(np.array([8.0, 4.0, 8.0, 8.0]), np.array(busy, dtype=float))
    assert speeds.speeds() == {"a": [SpeedPoint(8, 3.0, 5)], "b": [SpeedPoint(4, 5.0)]}
    speeds.change_ranks(["b"])
    speeds.add(np.array([6.0]), np.array([7.0]))
    found = speeds.speeds()
    assert found["a"] == [SpeedPoint(8, 3.0, 5)]
    assert found["b"] == [SpeedPoint(4, 5.0), SpeedPoint(6, 7.0)]


def test_long_trainings_keep_little_and_follow_a_change_of_pace():
    speeds = MeasuredSpeeds(["a"])
    for step in range(3000):
        speeds.add(np.array([8.0]), np.array([1.0 if step < 1500 else 2.0]))
        speeds.add(np.array([100.0 + step]), np.array([1.0]))
    (kept,) = speeds.speeds().values()
    assert len(kept) < 200
    assert next(point for point in kept if point.batch_size == 8).seconds > 1.9
