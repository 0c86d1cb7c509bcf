"""Pair shift and guards do what the papers say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Measurement, strategies
from hvd_dbs.balancing.controller import Controller
from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.dead_band import DeadBand
from hvd_dbs.balancing.solvers.equal_finish import EqualFinish
from hvd_dbs.balancing.solvers.pair_shift import PairShift
from hvd_dbs.balancing.solvers.proportional import Proportional
from tests.unit.balancing.rounds import even


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
