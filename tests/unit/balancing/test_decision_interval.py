"""After how many steps the next decision is due."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.solvers.decision_interval import DecisionInterval
from hvd_dbs.balancing.solvers.equal_finish import EqualFinish
from tests.unit.balancing.rounds import even


def steps_to_next(*rounds):
    """After the last of some rounds, in which three ranks take so many seconds a sample."""
    solver, problem = DecisionInterval(EqualFinish()), even(60, 3)
    state = solver.init()
    for per_sample in rounds:
        curves = AffineCurves(np.zeros(3), np.array(per_sample))
        proposal, state = solver.solve(state, problem, curves)
        problem = type(problem)(60, problem.bounds, proposal.plan, problem.decision_seconds)
    return proposal.steps_to_next


EQUAL, ONE_SLOW, ANOTHER_SLOW = (1e-3, 1e-3, 1e-3), (2e-3, 1e-3, 1e-3), (1e-3, 3e-3, 1e-3)


def test_decisions_become_rare_where_nothing_changes():
    first, later, at_last = (steps_to_next(*[EQUAL] * number) for number in (1, 10, 30))
    assert first < later < 20 <= at_last


def test_a_change_of_plan_brings_the_next_decision_sooner():
    quiet = [EQUAL] * 10
    assert steps_to_next(*quiet, ONE_SLOW) < steps_to_next(*quiet, EQUAL)


def test_what_was_made_for_a_pause_gains_nothing():
    quiet = [EQUAL] * 10
    undone = steps_to_next(*quiet, ONE_SLOW, EQUAL, EQUAL, EQUAL)
    kept = steps_to_next(*quiet, ONE_SLOW, ONE_SLOW, ONE_SLOW, ONE_SLOW)
    assert kept < undone


def test_another_rank_that_becomes_slow_makes_decisions_no_rarer():
    """Its loss is none of the change before."""
    quiet = [EQUAL] * 10
    slow_then = steps_to_next(*quiet, ONE_SLOW, ANOTHER_SLOW)
    assert slow_then <= steps_to_next(*quiet, ONE_SLOW, ONE_SLOW)
