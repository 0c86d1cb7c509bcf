"""First steps at a batch size, in which kernels may tune themselves: no pace, but a price."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Controller, Measurement, strategies
from tests.unit.balancing.rounds import fold, seconds_at

SPEEDS = np.array([1.0, 1.0, 2.0, 4.0])


def after_first_steps(longer, sizes=(10, 16, 24)):
    """A rank that has run three steps with 32 samples, and first steps at other sizes."""
    model = strategies.adaptive().model
    state = fold(model, [(32, 0.037), (32, 0.035), (32, 0.036)], num_steps=[1.0])
    for size in sizes:
        state = fold(model, [(size, 0.004 + 0.001 * size + longer)], state, num_steps=[0.0])
        state = fold(model, [(32, 0.036)], state, num_steps=[1.0])
    return model, state


def test_a_first_step_that_takes_ten_times_as_long_says_nothing_of_the_curve():
    model, state = after_first_steps(0.3)
    for size in (10, 16, 24, 32):
        assert seconds_at(model, state, size) == pytest.approx(0.004 + 0.001 * size, rel=0.1)


def test_a_first_step_that_takes_no_longer_shows_the_curve():
    model, state = after_first_steps(0.0)
    # Where a rank that knows 32 samples alone is far less sure.
    curves = model.curves(model.record(state))
    assert curves.deviations(np.array([24.0]))[0] < 0.05
    untried = after_first_steps(0.0, sizes=())[1]
    assert model.curves(model.record(untried)).deviations(np.array([24.0]))[0] > 0.05


def test_what_a_held_up_first_step_hides_is_still_new():
    """Else the next round could show no jump of the curve there, only another pace."""
    model, state = after_first_steps(0.3, sizes=(24,))
    points = model.curves(model.record(state)).points[:, 0]
    assert 32 in points and 24 not in points
    state = fold(model, [(24, 0.022)], state, num_steps=[1.0])
    assert seconds_at(model, state, 24) == pytest.approx(0.022, rel=0.05)
    assert seconds_at(model, state, 32) == pytest.approx(0.036, rel=0.05)


@pytest.mark.parametrize(("longer", "least", "most"), [(0.3, 0.2, 0.3), (0.0, 0.0, 0.002)])
def test_what_first_steps_cost_is_learnt(longer, least, most):
    model, state = after_first_steps(longer)
    assert least <= model.curves(model.record(state)).first_seconds[0] <= most


def changes(tuning_seconds, seed, num_rounds=60):
    """New batch sizes, as ranks see them after the first plan, with rounds of one step."""
    controller = Controller(strategies.adaptive(), 256, Bounds.of(4, 1), 4)
    rng, used, found = np.random.default_rng(seed), [{64} for _ in range(4)], 0
    for _ in range(num_rounds):
        samples = controller.plan.samples
        is_first = np.array([size not in sizes for size, sizes in zip(samples, used, strict=True)])
        for size, sizes in zip(samples, used, strict=True):
            sizes.add(float(size))
        found += int(is_first.any())
        seconds = (0.002 + 0.0005 * samples) * SPEEDS * (1 + 0.03 * rng.standard_normal(4))
        seconds += is_first * tuning_seconds
        steps = np.where(is_first, 0.0, 1.0)
        controller.decide(controller.observe(Measurement.of(samples, seconds, num_steps=steps)))
    best = (256 * 0.0005 + 4 * 0.002) / np.sum(1 / SPEEDS)
    over = ((0.002 + 0.0005 * controller.plan.samples) * SPEEDS).max() / best - 1
    return found, over


def test_plans_settle_sooner_where_first_steps_cost_much():
    slow, fast = ([changes(seconds, seed) for seed in range(5)] for seconds in (1.0, 0.0))
    assert all(few <= 5 and over <= 0.1 for few, over in slow)
    assert sum(few for few, _ in slow) < sum(many for many, _ in fast)
