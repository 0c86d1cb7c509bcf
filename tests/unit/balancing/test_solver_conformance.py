"""What every registered solver has to fulfil; joined by its registry line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_dbs.balancing import Bounds, Plan
from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers import SOLVERS

THROUGH_ORIGIN = {"proportional", "pair_shift"}
"""Solvers whose method assumes that time is in proportion to samples."""

seconds = st.floats(1e-4, 1e-1)


@st.composite
def problems(draw, solver, bounded=True):
    """An even start, bounds that allow it or not quite, or none; and increasing lines."""
    size = draw(st.integers(2, 9))
    if bounded:
        unit = draw(st.sampled_from([1, 1, 4]))
        low = draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
        room = draw(st.lists(st.integers(4, 80), min_size=size, max_size=size))
        high = [a + r for a, r in zip(low, room, strict=True)]
        bounds = Bounds.of(size, low, high, unit)
        least, most = sum(-(-a // unit) for a in low), sum(b // unit for b in high)
        total = draw(st.integers(max(size, least), min(40 * size, most))) * unit
    else:
        bounds, total = Bounds.of(size, 1), draw(st.integers(1, 40)) * size
    current = Plan.proportional(total, [1.0] * size, bounds)
    per_sample = np.array(draw(st.lists(seconds, min_size=size, max_size=size)))
    fixed = np.array(draw(st.lists(seconds, min_size=size, max_size=size))) * 10
    if solver in THROUGH_ORIGIN:
        fixed = np.zeros(size)
    return Problem(total, bounds, current), AffineCurves(fixed, per_sample)


def solve(name, problem, curves):
    solver = SOLVERS[name]()
    proposal, state = solver.solve(solver.init(), problem, curves)
    json.dumps(state)
    return proposal.plan


def step_seconds(curves, plan):
    return float(np.max(curves.seconds(plan.samples)))


def permuted(problem, curves, order):
    bounds = problem.bounds
    return (
        Problem(
            problem.global_batch_size,
            Bounds(
                tuple(bounds.minimum[i] for i in order),
                tuple(bounds.maximum[i] for i in order),
                bounds.multiple_of,
            ),
            Plan(tuple(problem.current.batch_sizes[i] for i in order)),
        ),
        AffineCurves(curves.fixed[order], curves.per_sample[order]),
    )


@pytest.mark.parametrize("name", SOLVERS)
class TestSolver:
    @settings(max_examples=80, deadline=None)
    @given(data=st.data())
    def test_sum_bounds_and_multiple(self, name, data):
        problem, curves = data.draw(problems(name))
        plan = solve(name, problem, curves)
        assert plan.global_batch_size == problem.global_batch_size
        assert all(b % problem.bounds.multiple_of == 0 for b in plan.batch_sizes)
        for b, low, high in zip(
            plan.batch_sizes, problem.bounds.minimum, problem.bounds.maximum, strict=True
        ):
            assert low <= b <= high

    @settings(max_examples=50, deadline=None)
    @given(data=st.data())
    def test_permuting_ranks_permutes_the_plan(self, name, data):
        problem, curves = data.draw(problems(name))
        order = np.array(data.draw(st.permutations(range(problem.current.size))))
        plan = solve(name, problem, curves)
        other = solve(name, *permuted(problem, curves, order))
        # Ties go to the lowest rank, so units may sit elsewhere if they cost the same there.
        moved = Plan(tuple(plan.batch_sizes[i] for i in order))
        distance = np.abs(other.samples - moved.samples)
        if (
            len({*curves.per_sample.tolist()}) == problem.current.size
            and len({*problem.current.batch_sizes}) == 1
        ):
            assert distance.max() <= problem.bounds.multiple_of

    @settings(max_examples=30, deadline=None)
    @given(data=st.data())
    def test_same_input_same_output(self, name, data):
        problem, curves = data.draw(problems(name))
        assert solve(name, problem, curves) == solve(name, problem, curves)

    @settings(max_examples=30, deadline=None)
    @given(size=st.integers(2, 9), mean=st.integers(4, 40), rate=seconds, fixed=seconds)
    def test_equal_speeds_equal_shares(self, name, size, mean, rate, fixed):
        fixed = 0.0 if name in THROUGH_ORIGIN else fixed
        total = size * mean + 1
        problem = Problem(
            total, Bounds.of(size, 1), Plan.proportional(total, [1.0] * size, Bounds.of(size, 1))
        )
        plan = solve(name, problem, AffineCurves(np.full(size, fixed), np.full(size, rate)))
        assert max(plan.batch_sizes) - min(plan.batch_sizes) <= 1

    @settings(max_examples=80, deadline=None)
    @given(data=st.data())
    def test_a_faster_rank_never_gets_less(self, name, data):
        problem, curves = data.draw(problems(name, bounded=False))
        plan = solve(name, problem, curves).batch_sizes
        size = len(plan)
        for i in range(size):
            for j in range(size):
                faster = (
                    curves.fixed[i] <= curves.fixed[j]
                    and curves.per_sample[i] < curves.per_sample[j]
                )
                assert not faster or plan[i] >= plan[j], (i, j, plan)

    @settings(max_examples=50, deadline=None)
    @given(data=st.data(), power=st.integers(-6, 6))
    def test_scaling_all_times_changes_nothing(self, name, data, power):
        problem, curves = data.draw(problems(name))
        scaled = AffineCurves(curves.fixed * 2.0**power, curves.per_sample * 2.0**power)
        assert solve(name, problem, curves) == solve(name, problem, scaled)

    @settings(max_examples=80, deadline=None)
    @given(data=st.data())
    def test_never_worse_than_even_on_its_model(self, name, data):
        problem, curves = data.draw(problems(name))
        plan = solve(name, problem, curves)
        rounding = 0.0
        if name == "proportional":  # It rounds to the nearest share, not to the shortest step.
            rounding = float(curves.per_sample.max()) * problem.bounds.multiple_of
        before = step_seconds(curves, problem.current)
        assert step_seconds(curves, plan) <= before * (1 + 1e-9) + rounding
