"""Equal finish is optimal, for curves of any shape."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.table_curves import TableCurves
from hvd_dbs.balancing import Bounds, Plan
from hvd_dbs.balancing.curves import AffineCurves, OverlapCurves, RowCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.point_curves import PointCurves
from hvd_dbs.balancing.solvers.equal_finish import equal_finish, plan_within
from tests.unit.balancing.rounds import even


def step_seconds(curves, plan):
    return float(np.max(curves.seconds(plan.samples)))


@st.composite
def small_tables(draw):
    """Two or three ranks, a dozen batch sizes, times that rise and fall, with ties."""
    size, length = draw(st.integers(2, 3)), draw(st.integers(4, 11))
    table = draw(
        st.lists(
            st.lists(st.integers(1, 12), min_size=length, max_size=length),
            min_size=size,
            max_size=size,
        )
    )
    unit = draw(st.integers(1, 2))
    low = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    high = draw(st.lists(st.integers(length // 2, length - 1), min_size=size, max_size=size))
    bounds = Bounds.of(size, low, [max(a, b) for a, b in zip(low, high, strict=True)], unit)
    least, most = bounds.in_units(1000)
    assume(np.all(least <= most) and most.sum() > 0)
    total = unit * draw(st.integers(max(int(least.sum()), 1), int(most.sum())))
    start = Plan.proportional(total, [1.0] * size, bounds)
    return Problem(total, bounds, start), TableCurves(np.array(table, dtype=float))


def test_ranks_finish_together_where_no_plan_is_faster_than_the_one_in_force():
    """Three ranks take 45 s with 30 samples, the fourth one 41.25 s: it cannot relieve all."""
    curves = AffineCurves(np.zeros(4), np.array([1.5, 1.5, 1.5, 1.375]))
    seconds = curves.seconds(equal_finish(even(120, 4), curves).samples)
    assert seconds.max() == 45 and np.ptp(seconds) <= 1.5


class WithoutInverse(TableCurves):
    """The same curves, but the inverse is the one that increasing curves have anyway."""

    units_within = RowCurves.units_within


class TestEqualFinish:
    @settings(max_examples=400)
    @given(case=small_tables())
    def test_optimal_for_any_curve(self, case):
        """Brute force over all plans, holes and ties included."""
        problem, curves = case
        unit = problem.bounds.multiple_of
        low, high = problem.bounds.in_units(problem.global_batch_size)
        choices = [range(a, b + 1) for a, b in zip(low, high, strict=True)]
        best = min(
            max(curves.table[i, u * unit] for i, u in enumerate(units))
            for units in itertools.product(*choices)
            if sum(units) * unit == problem.global_batch_size
        )
        assert step_seconds(curves, equal_finish(problem, curves)) == best

    @settings(max_examples=200)
    @given(data=st.data(), size=st.integers(2, 12))
    def test_agrees_with_the_closed_form(self, data, size):
        """Cannikin: T = (B + sum a/c) / sum 1/c, b = (T - a)/c, within rounding."""
        rates = st.lists(st.floats(0.5, 4.0), min_size=size, max_size=size)
        c = np.array(data.draw(rates)) * 1e-3
        a = np.array(data.draw(rates)) * 1e-3
        total = 40 * size
        seconds = (total + np.sum(a / c)) / np.sum(1 / c)
        exact = (seconds - a) / c
        assume(exact.min() >= 0)
        curves = AffineCurves(a, c)
        plan = equal_finish(even(total, size), curves)
        assert np.abs(plan.samples - exact).max() <= size
        assert seconds - 1e-12 <= step_seconds(curves, plan) <= seconds + c.max() + 1e-12

    @settings(max_examples=100)
    @given(data=st.data(), size=st.integers(2, 9))
    def test_with_bounds_the_free_ranks_finish_together(self, data, size):
        c = np.array(data.draw(st.lists(st.floats(0.2, 4.0), min_size=size, max_size=size)))
        problem = even(30 * size, size, minimum=10, maximum=50)
        plan = equal_finish(problem, AffineCurves(np.zeros(size), c)).samples
        free = (plan > 10) & (plan < 50)
        assume(np.any(free))
        times = plan * c
        assert np.ptp(times[free]) <= 2 * c.max()
        assert np.all(times[plan == 10] >= times[free].max() - 2 * c.max())
        assert np.all(times[plan == 50] <= times[free].min() + 2 * c.max())

    @settings(max_examples=100)
    @given(data=st.data(), size=st.integers(2, 6))
    def test_curves_without_an_inverse(self, data, size):
        """Bisection on an increasing curve finds what the table does."""

        steps = data.draw(
            st.lists(
                st.lists(st.integers(1, 9), min_size=41, max_size=41), min_size=size, max_size=size
            )
        )
        table = np.cumsum(np.array(steps, dtype=float), axis=1)
        problem = even(12 * size, size, maximum=40)
        one, other = (equal_finish(problem, c) for c in (TableCurves(table), WithoutInverse(table)))
        assert step_seconds(TableCurves(table), one) == step_seconds(TableCurves(table), other)

    def test_overlap_on_the_paper_s_formula(self):
        """f = max((q+k) b + s + m, (q + g k) b + s + g m + T_o), against all plans of two ranks."""
        rng = np.random.default_rng(3)
        for _ in range(50):
            curves, _ = cannikin_instance(rng, 2)
            problem = even(60, 2, minimum=1)
            best = min(step_seconds(curves, Plan((b, 60 - b))) for b in range(1, 60))
            assert step_seconds(curves, equal_finish(problem, curves)) == pytest.approx(best)

    def test_equalising_compute_alone_loses(self):
        """Cannikin's comparison: some instances lose a lot when overlap is not seen."""
        rng = np.random.default_rng(4)
        lost = []
        for _ in range(300):
            curves, compute = cannikin_instance(rng, 4)
            problem = even(128, 4, minimum=1)
            blind, seeing = (equal_finish(problem, c) for c in (compute, curves))
            lost.append(step_seconds(curves, blind) / step_seconds(curves, seeing) - 1)
        assert min(lost) >= -1e-9
        assert np.max(lost) > 0.05

    def test_the_longest_step_allowed_is_sharp(self):
        curves = AffineCurves(np.zeros(2), np.array([1.0, 2.0]))
        problem = even(30, 2)
        assert plan_within(problem, curves, 20.0).batch_sizes == (20, 10)
        assert plan_within(problem, curves, 19.99) is None

    @pytest.mark.parametrize("odd", [0.1, 1.0, 10.0])
    def test_many_ranks_are_solved_as_well_as_few(self, odd):
        """From 4,096 ranks on some are asked first, which may know nothing of the others."""
        size = 4096
        per_sample = np.where(np.arange(size) % 16 == 0, odd, 1.0) * 0.01
        curves = AffineCurves(np.zeros(size), per_sample)
        problem = even(32 * size, size)
        best = 32 * size / (1 / per_sample).sum()
        plan = equal_finish(problem, curves)
        assert step_seconds(curves, plan) <= best + per_sample.max()
        assert plan_within(problem, curves, 0.9 * best) is None

    def test_ranks_at_their_minimum_are_not_found_one_after_the_other(self):
        """The slowest of 500 sets the deadline, the next ones come soon after it."""
        size, asked = 500, 0

        class Counted(AffineCurves):
            def units_within(self, deadline, grid):
                nonlocal asked
                asked += 1
                return super().units_within(deadline, grid)

        pace = np.exp(np.random.default_rng(1).normal(0, 0.2, size)) * 1e-3
        problem = even(32 * size, size, minimum=28)
        plan = equal_finish(problem, Counted(np.zeros(size), pace))
        seconds = pace * plan.samples
        assert asked < 150
        assert seconds.max() == 28 * pace.max()
        above = plan.samples > 28
        # No more ranks could be spared: those above their minimum end together, before the others.
        assert np.ptp(seconds[above]) <= 2 * pace[above].max()
        assert seconds[above].max() <= seconds[~above].min() + pace.max()

    @pytest.mark.parametrize("size, batch_size", [(4096, 32), (3000, 64), (64, 32)])
    def test_who_is_late_with_its_fewest_samples_may_be_in_time_with_more(self, size, batch_size):
        """However many ranks: one of them has a tooth at its minimum."""
        points, times = np.full((2, size), batch_size - 2.0), np.ones((2, size))
        points[1], times[0] = batch_size, 1.0 - 0.2 / batch_size
        points[:, 5], times[:, 5] = (8, 12), (10, 5)
        curves = PointCurves(points, times, np.full(size, 0.1 / batch_size), np.zeros(size))
        minimum = [8 if rank == 5 else 1 for rank in range(size)]
        problem = even(batch_size * size, size, minimum=minimum)
        assert step_seconds(curves, equal_finish(problem, curves)) == 5.0
        assert plan_within(problem, curves, 4.9) is None

    def test_a_step_too_short_for_the_fewest_samples_of_a_rank_has_no_plan(self):
        """Nor may that rank be sooner with more."""
        curves = AffineCurves(np.zeros(3), np.array([1.0, 1.0, 5.0]))
        problem = even(30, 3, minimum=[1, 1, 4])
        assert plan_within(problem, curves, 20.0) == Plan((13, 13, 4))
        assert plan_within(problem, curves, 19.9) is None

    def test_narrowed_curves_find_the_same_plan(self):
        rng = np.random.default_rng(5)
        for _ in range(100):
            points = np.sort(rng.choice(np.arange(1, 90), (5, 4), replace=False), axis=1).T * 1.0
            points = np.sort(points, axis=0)
            times = np.sort(rng.uniform(1, 9, (4, 5)), axis=0) * rng.uniform(0.8, 1.2, (4, 5))
            curves = PointCurves(points, times, rng.uniform(0.05, 0.2, 5), np.zeros(5))
            table = [curves.seconds(np.full(5, float(b))) for b in range(301)]
            problem = even(300, 5, minimum=1, maximum=300)
            plan = equal_finish(problem, curves)
            best = equal_finish(problem, TableCurves(np.stack(table, axis=1)))
            assert step_seconds(curves, plan) == pytest.approx(step_seconds(curves, best))


def cannikin_instance(rng, size):
    """Random ranks by the paper's formula: with overlap, and computing alone."""
    q, k = rng.uniform(0.5, 4.0, (2, size)) * 1e-3
    s, m = rng.uniform(0.0, 10.0, (2, size)) * 1e-3
    gamma, overlap = rng.uniform(0.1, 0.5), rng.uniform(0.0, 0.2)
    compute = AffineCurves(s + m, q + k)
    exposed = AffineCurves(s + gamma * m + overlap, q + gamma * k)
    return OverlapCurves(compute, exposed), compute
