"""Ranks that become slow again and again are planned for before they do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Measurement, Plan
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.foresight import foresee, no_foresight
from hvd_dbs.balancing.time_models.visited_points import VisitedPoints
from hvd_dbs.balancing.visited_curves import SlowSpells, VisitedCurves
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.simulation import preset, simulate
from hvd_dbs.simulator.suite import SCENARIO_CLASSES

LATE, SLOWNESS = 3, float(np.log(3))
"""Rounds from when a rank becomes slow until a plan holds that knows it, and by how much it is."""


def told(rounds):
    """What a model says after rounds of (batch size, seconds), of one rank."""
    model = VisitedPoints()
    state = model.init(1)
    for b, t in rounds:
        state = model.update(state, Measurement.of([b], [t], num_steps=[3]))
    return model.curves(model.record(state)).spells


def test_a_spell_is_told_from_a_slow_batch_size():
    usual, slow = [(32, 0.04)] * 8, [(32, 0.08)] * 8
    assert told(usual).now == told(usual).past == 0
    assert told(usual + slow[:1]).now == pytest.approx(np.log(2), rel=0.05)
    assert told(usual + slow[:LATE]).before == 0
    assert told(usual + slow[: LATE + 1]).before == pytest.approx(np.log(2), rel=0.05)
    assert told(usual + slow).past == 0
    over = told(usual + slow + usual)
    assert over.now == 0 and over.past == pytest.approx(np.log(2), rel=0.05)
    tooth = told(usual + [(33, 0.056)] * 8 + usual)
    assert tooth.past == tooth.now == 0


def test_what_stays_is_no_spell_that_is_over():
    for_good = told([(32, 0.04)] * 8 + [(32, 0.06)] * 150)
    assert for_good.now < 0.2 and for_good.past == 0


def test_whoever_becomes_faster_than_ever_was_slow_until_then():
    over = told([(32, 0.08)] * 8 + [(32, 0.04)] * 8)
    assert over.now == 0
    again = told([(32, 0.08)] * 8 + [(32, 0.04)] * 8 + [(32, 0.08)] * 8)
    assert again.now == pytest.approx(np.log(2), rel=0.05)


def steady(size):
    """Ranks that take 32 ms for 32 samples and have never been slow."""
    none = np.zeros(size)
    return VisitedCurves(
        np.full((2, size), 32.0),
        np.full((2, size), 0.032),
        none + 0.001,
        none,
        none,
        usual=np.log(0.032) - 0.9 * np.log(32) + none,
        spells=SlowSpells.none(size),
    )


def expected(size, slow_rounds, pause, num_rounds=240, minimum=1):
    """How much slower than usual each rank is planned with, where rank 0 has spells."""
    curves = steady(size)
    rank_0 = SLOWNESS * (np.arange(-LATE, num_rounds) % (slow_rounds + pause) < slow_rounds)
    problem = Problem(32 * size, Bounds.of(size, minimum), Plan((32,) * size))
    state, first = {**no_foresight(), "promised_seconds": None}, np.eye(size)[0]
    for now, before in zip(rank_0[LATE:], rank_0[:-LATE], strict=True):
        spells = SlowSpells(now * first, before * first, SLOWNESS * first)
        slower = 0.032 * float(np.exp(now))
        state, slowed = foresee(state, replace(curves, spells=spells), problem, slower)
    return None if slowed is None else slowed / 0.032


def test_who_has_been_slow_is_taken_to_be_slow_where_that_pays():
    """With 3 rounds in 12 that are late by log 3, 0.27 is lost; a rank of 20 at a third, 0.03."""
    slower = expected(20, 6, 6)
    assert slower[0] > 3**0.7 and not slower[1:].any()
    # A rank that cannot have fewer samples cannot be helped.
    assert expected(20, 6, 6, minimum=32) is None
    # Of two ranks, one at a third would cost 0.4; and 3 rounds in 200 are not worth it.
    assert expected(2, 6, 6) is None
    assert expected(20, 6, 194) is None


def test_what_is_no_number_is_not_learnt_from():
    now = np.array([0.0, np.nan])
    curves = replace(steady(2), spells=SlowSpells(now, 0 * now, np.ones(2)))
    problem = Problem(64, Bounds.of(2), Plan((32, 32)))
    state, _ = foresee({**no_foresight(), "promised_seconds": None}, curves, problem, 0.032)
    assert state["losses"] == no_foresight()["losses"] and state["spell"] == 0.0


def test_neighbours_that_come_and_go_on_some_hosts_do_not_stop_the_others():
    """A step in three would wait for one of them otherwise, for 2.2 times as long as it takes."""
    conditions = Conditions.of(replace(SCENARIO_CLASSES["neighbours"](128), steps=600, seed=1))
    run = simulate(conditions, preset("adaptive", conditions))
    late = slice(400, None)
    assert conditions.oracle_seconds[late].sum() / run.true_seconds[late].sum() > 0.87
