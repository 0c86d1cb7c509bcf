"""Equal finish is optimal; pair shift and guards do what the papers say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.table_curves import TableCurves
from hvd_dbs.balancing import Bounds, Measurement, Plan, strategies
from hvd_dbs.balancing.controller import Controller
from hvd_dbs.balancing.curves import AffineCurves, OverlapCurves, RowCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.point_curves import PointCurves
from hvd_dbs.balancing.solvers.dead_band import DeadBand
from hvd_dbs.balancing.solvers.equal_finish import EqualFinish, equal_finish, plan_within
from hvd_dbs.balancing.solvers.pair_shift import PairShift
from hvd_dbs.balancing.solvers.proportional import Proportional


def even(total, size, **bounds):
    allowed = Bounds.of(size, **bounds)
    return Problem(total, allowed, Plan.proportional(total, [1.0] * size, allowed))


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
        curves = PointCurves(points, times, np.full(size, 0.1 / batch_size))
        minimum = [8 if rank == 5 else 1 for rank in range(size)]
        problem = even(batch_size * size, size, minimum=minimum)
        assert step_seconds(curves, equal_finish(problem, curves)) == 5.0
        assert plan_within(problem, curves, 4.9) is None

    def test_narrowed_curves_find_the_same_plan(self):
        rng = np.random.default_rng(5)
        for _ in range(100):
            points = np.sort(rng.choice(np.arange(1, 90), (5, 4), replace=False), axis=1).T * 1.0
            points = np.sort(points, axis=0)
            times = np.sort(rng.uniform(1, 9, (4, 5)), axis=0) * rng.uniform(0.8, 1.2, (4, 5))
            visited = PointCurves(points, times, rng.uniform(0.05, 0.2, 5))
            for curves in (visited.in_pieces(), visited):
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


class TestPairShift:
    def run(self, rates, total, rounds, fixed=0.0):
        solver, curves = PairShift(), AffineCurves(np.full(len(rates), fixed), np.array(rates))
        state, problem, plans = solver.init(), even(total, len(rates), minimum=1), []
        for _ in range(rounds):
            samples = problem.current.samples
            seen = AffineCurves(np.zeros(len(rates)), curves.seconds(samples) / samples)
            proposal, state = solver.solve(state, problem, seen)
            problem = Problem(total, problem.bounds, proposal.plan)
            plans.append(proposal.plan)
        return plans, state

    def test_one_pair_at_a_time(self):
        plans, _ = self.run([1.0, 2.0, 3.0, 4.0], 128, 1)
        assert plans[0].batch_sizes == (40, 32, 32, 24)  # A quarter of an even share.

    def test_comes_to_rest_close_to_even_times(self):
        plans, _ = self.run([1.0, 2.0, 3.0, 4.0], 128, 200)
        times = plans[-1].samples * [1.0, 2.0, 3.0, 4.0]
        assert np.ptp(times) <= 2 * 4.0
        assert len(set(plans[-30:])) == 1

    def moves(self, seconds_after, num_rounds, size):
        """Changes of the plan by round, shape `[rounds, size]`, where clocks say what is given."""
        solver, problem, moves = PairShift(), even(48 * size, size, minimum=1), []
        state, move = solver.init(), np.zeros(size)
        for _ in range(num_rounds):
            samples = problem.current.samples
            seen = AffineCurves(np.zeros(size), seconds_after(move) / samples)
            proposal, state = solver.solve(state, problem, seen)
            move = proposal.plan.samples - samples if proposal.plan != problem.current else move
            moves.append(proposal.plan.samples - samples)
            problem = Problem(48 * size, problem.bounds, proposal.plan)
        return np.array(moves)

    def test_moves_that_are_taken_back_become_smaller_and_rarer(self):
        moves = self.moves(self.last_receiver_is_slow, 80, 2)
        (rounds,) = np.nonzero(moves[:, 0])
        sizes, waits = np.abs(moves[rounds, 0]), np.diff(rounds)
        assert sizes[0] > 1 and sizes[-1] == 1 and np.all(np.diff(sizes) <= 0)
        assert waits[0] == 1 and waits[-1] == 16 and np.all(np.diff(waits) >= 0)

    def test_moves_that_go_on_become_larger_and_more_frequent_again(self):
        calls = itertools.count()

        def seconds_after(move):
            return self.last_receiver_is_slow(move) if next(calls) < 80 else np.array([1.1, 1.0])

        moves = self.moves(seconds_after, 140, 2)[80:, 1]
        (rounds,) = np.nonzero(moves)
        assert moves[rounds[0]] == 1 and moves.max() == 2  # All that evens them out.
        assert np.diff(rounds)[0] >= 8 and np.diff(rounds)[-1] == 1

    def test_one_rank_of_the_pair_alone_takes_no_move_back(self):
        """The straggler received last, but the leader never gave: noise may have picked them."""
        calls = itertools.count()

        def seconds_after(_):
            seconds, straggler = np.full(6, 1.05), next(calls)
            seconds[straggler : straggler + 2] = 1.1, 1.0
            return seconds

        moves = self.moves(seconds_after, 5, 6)
        assert np.all(moves.max(axis=1) >= 2) and np.all(moves.argmax(axis=1) == [1, 2, 3, 4, 5])

    def last_receiver_is_slow(self, move):
        return np.where(move > 0, 1.1, 1.0) if move.any() else np.array([1.0, 1.1])

    @pytest.mark.parametrize("slower", [1.25, 1.6])
    @pytest.mark.parametrize("rates", [(1.0, 1.0, 1.2, 1.5), (1.0, 1.0)])
    def test_a_change_is_followed_as_soon_after_thousands_of_steps(self, rates, slower):
        """Noise must not have worn delta down by then."""
        slow = (slower * rates[0], *rates[1:])
        for first_round in (400, 1600):  # Steps 2,000 and 8,000, at the preset's 5 a decision.
            plans = self.noisy_run(rates, slow, first_round, seed=first_round)
            times = np.array([plan.samples * slow for plan in plans[first_round:]]).max(axis=1)
            ideal = plans[0].global_batch_size / np.sum(1 / np.array(slow))
            assert np.median(times[8:16]) < 1.05 * ideal  # 40 to 80 steps later.

    def test_equal_noisy_ranks_stay_close_to_the_even_split(self):
        plans = self.noisy_run((1.0,) * 8, (1.0,) * 8, 400, seed=5)
        samples = np.array([plan.samples for plan in plans[200:]])
        assert np.abs(samples - 256).max() <= 8
        assert len(np.unique(samples, axis=0)) < 0.1 * len(samples)

    def noisy_run(self, rates, after, first_round, seed):
        """Plans of the preset, 5 steps a round, 3 % noise; other rates from a round on."""
        size, random = len(rates), np.random.default_rng(seed)
        controller = Controller(strategies.lb_bsp_gpu(), 256 * size, Bounds.of(size, 1), size)
        plans = []
        for i in range(first_round + 20):
            plans.append(controller.plan)
            samples = controller.plan.samples
            noise = np.exp(0.03 * random.standard_normal((size, 5))).mean(axis=1)
            busy = samples * (rates if i < first_round else after) * noise
            controller.decide(controller.observe(Measurement.of(samples, busy)))
        return plans

    def test_a_full_leader_is_passed_over(self):
        problem = even(96, 3, minimum=1, maximum=[32, 64, 64])
        curves = AffineCurves(np.zeros(3), np.array([1.0, 2.0, 4.0]))
        plan = PairShift().solve(PairShift().init(), problem, curves)[0].plan
        assert plan.batch_sizes[0] == 32 and plan.batch_sizes[1] > 32


class TestGuards:
    problem = even(100, 2, minimum=1)

    def solve(self, guard, *per_sample):
        curves = AffineCurves(np.zeros(2), np.array(per_sample))
        return guard.solve(guard.init(), self.problem, curves)[0]

    def test_dead_band(self):
        guard = DeadBand(Proportional(), 0.05)
        kept = self.solve(guard, 1.0, 1.05)
        assert kept.plan == self.problem.current and "dead band" in kept.reason
        assert self.solve(guard, 1.0, 1.3).plan.batch_sizes == (57, 43)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: DeadBand(EqualFinish(), -1),
            lambda: PairShift(window=0),
        ],
    )
    def test_impossible_settings(self, make):
        with pytest.raises(ValueError, match="="):
            make()
