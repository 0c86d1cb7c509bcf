"""What every registered solver has to fulfil; joined by its registry line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hvd_dbs.balancing import Bounds, Plan
from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers import SOLVERS

THROUGH_ORIGIN = {"proportional", "pair_shift"}
"""Solvers whose method assumes that time is in proportion to samples."""

seconds = st.floats(1e-4, 1e-1)


@st.composite
def problems(draw, solver, bounded=True, even=False):
    """An even start, bounds that allow it or not quite, and increasing lines.

    Args:
        solver: Its name; some assume lines through the origin.
        bounded: Whether there are bounds, and units of several samples.
        even: Whether the start is exactly even and no two ranks are equally fast: where nothing is
            tied, nothing depends on the order of ranks.
    """
    size = draw(st.integers(2, 9))
    unit = draw(st.sampled_from([1, 1, 4])) if bounded else 1
    low = draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    room = draw(st.lists(st.integers(14 if even else 4, 80), min_size=size, max_size=size))
    high = [a + r for a, r in zip(low, room, strict=True)]
    bounds = Bounds.of(size, low, high, unit) if bounded else Bounds.of(size, 1)
    if even:
        least, most = bounds.in_units(40 * size * unit)
        mean = draw(st.integers(max(1, int(least.max())), min(40, int(most.min()))))
        total = size * mean * unit
    else:
        total = draw(st.integers(size, 40 * size)) * unit
    try:
        current = Plan.proportional(total, [1.0] * size, bounds)
    except ValueError:
        assume(False)
    per_sample = np.array(draw(st.lists(seconds, min_size=size, max_size=size)))
    if even:
        rates = st.integers(1, 1000)
        per_sample = draw(st.lists(rates, min_size=size, max_size=size, unique=True))
        per_sample = 1e-4 * np.array(per_sample)
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
    @settings(max_examples=80)
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

    @settings(max_examples=50)
    @given(data=st.data())
    def test_permuting_ranks_permutes_the_plan(self, name, data):
        problem, curves = data.draw(problems(name, even=True))
        order = np.array(data.draw(st.permutations(range(problem.current.size))))
        plan = solve(name, problem, curves)
        other = solve(name, *permuted(problem, curves, order))
        # Ties go to the lowest rank, so units may sit elsewhere if they cost the same there.
        moved = Plan(tuple(plan.batch_sizes[i] for i in order))
        distance = np.abs(other.samples - moved.samples)
        assert distance.max() <= problem.bounds.multiple_of

    @settings(max_examples=30)
    @given(size=st.integers(2, 9), mean=st.integers(4, 40), rate=seconds, fixed=seconds)
    def test_equal_speeds_equal_shares(self, name, size, mean, rate, fixed):
        fixed = 0.0 if name in THROUGH_ORIGIN else fixed
        total = size * mean + 1
        problem = Problem(
            total, Bounds.of(size, 1), Plan.proportional(total, [1.0] * size, Bounds.of(size, 1))
        )
        plan = solve(name, problem, AffineCurves(np.full(size, fixed), np.full(size, rate)))
        assert max(plan.batch_sizes) - min(plan.batch_sizes) <= 1

    @settings(max_examples=80)
    @given(data=st.data())
    def test_a_faster_rank_never_gets_less(self, name, data):
        problem, curves = data.draw(problems(name, bounded=False, even=True))
        plan = solve(name, problem, curves).batch_sizes
        size = len(plan)
        for i in range(size):
            for j in range(size):
                faster = (
                    curves.fixed[i] <= curves.fixed[j]
                    and curves.per_sample[i] < curves.per_sample[j]
                )
                assert not faster or plan[i] >= plan[j], (i, j, plan)

    @settings(max_examples=50)
    @given(data=st.data(), power=st.integers(-6, 6))
    def test_scaling_all_times_changes_nothing(self, name, data, power):
        problem, curves = data.draw(problems(name))
        scaled = AffineCurves(curves.fixed * 2.0**power, curves.per_sample * 2.0**power)
        assert solve(name, problem, curves) == solve(name, problem, scaled)

    @settings(max_examples=80)
    @given(data=st.data())
    def test_never_worse_than_even_on_its_model(self, name, data):
        problem, curves = data.draw(problems(name))
        plan = solve(name, problem, curves)
        rounding = 0.0
        if name == "proportional":  # It rounds to the nearest share, not to the shortest step.
            rounding = float(curves.per_sample.max()) * problem.bounds.multiple_of
        before = step_seconds(curves, problem.current)
        assert step_seconds(curves, plan) <= before * (1 + 1e-9) + rounding
