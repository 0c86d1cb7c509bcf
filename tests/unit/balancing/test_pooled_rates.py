"""What all ranks of a job show of how often each changes or pauses."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Controller, Measurement, strategies
from tests.unit.balancing.rounds import seconds_at

MODEL = strategies.adaptive().model


def records_of(size, changes, pauses, rounds=100):
    """Of ranks that have run so many rounds of one step, some of them longer."""
    rng, state = np.random.default_rng(3), MODEL.init(size)
    for k in range(rounds):
        seconds = 0.1 * np.exp(0.02 * rng.standard_normal(size))
        seconds[rng.random(size) < pauses] *= 2.5
        seconds[: int(changes * size)] *= 2.0 if k // 10 % 2 else 1.0
        batch_sizes, steps = np.full(size, 32.0), np.ones(size)
        state = MODEL.update(state, Measurement.of(batch_sizes, seconds, num_steps=steps))
        state = MODEL.pool(state, MODEL.record(state))
    return MODEL.record(state)


QUIET = records_of(256, 0.0, 0.02)
CHANGING = records_of(64, 0.5, 0.0)


def after_a_long_step(factor, records):
    """What a rank with 20 usual steps and a long one is expected to take, in usual steps."""
    rng, state = np.random.default_rng(4), MODEL.init(1)
    if records is not None:
        state = MODEL.pool(state, records)
    for one in [1.0] * 20 + [factor]:
        seconds = [0.1 * one * np.exp(0.02 * rng.standard_normal())]
        state = MODEL.update(state, Measurement.of([32], seconds, num_steps=[1.0]))
    return seconds_at(MODEL, state, 32) / 0.1


def test_a_long_step_is_a_pause_in_a_job_whose_ranks_pause_and_never_change():
    assert after_a_long_step(1.4, QUIET) == pytest.approx(1.0, rel=0.05)
    assert after_a_long_step(1.4, None) > 1.15


def test_a_long_step_that_may_be_a_change_is_counted_as_a_pause_once_it_is_over():
    rng, state = np.random.default_rng(3), MODEL.init(256)
    as_often = records_of(1, 0.0, 0.0)
    as_often[:, -3:] = 10, 10, 1000
    changes = []
    for longer in [1.0] * 8 + [2.0, 1.0]:
        seconds = 0.1 * longer * np.exp(0.02 * rng.standard_normal(256))
        state = MODEL.pool(state, as_often)
        measurement = Measurement.of(np.full(256, 32.0), seconds, num_steps=np.ones(256))
        state = MODEL.update(state, measurement)
        changes.append(MODEL.record(state)[:, -3].mean())
    assert changes[-2] > 0.4
    assert changes[-1] < 0.1


def test_it_is_a_change_in_a_job_whose_ranks_change():
    assert after_a_long_step(2.5, CHANGING) > 1.8
    assert after_a_long_step(2.5, None) == pytest.approx(1.0, rel=0.05)


def test_ranks_that_do_not_decide_learn_the_same_rates():
    """As in a job: each has its own row, and all have the records."""
    controllers = [Controller(strategies.adaptive(), 64, Bounds.of(2), 1) for _ in range(2)]
    for k in range(6):
        busy = (0.1, 0.1 + 0.1 * (k > 3))
        records = np.concatenate(
            [
                one.observe(Measurement.of([32], [seconds], num_steps=[1.0]))
                for one, seconds in zip(controllers, busy, strict=True)
            ]
        )
        controllers[0].decide(records)
        controllers[1].pool(records)
    first, second = (one.state_dict()["model"]["rates"] for one in controllers)
    assert (
        first
        == second
        != Controller(strategies.adaptive(), 64, Bounds.of(2), 1).state_dict()["model"]["rates"]
    )


@pytest.mark.parametrize("nothing", [np.nan, np.inf])
def test_a_rank_without_a_record_says_nothing_of_the_rates(nothing):
    records = records_of(4, 0.0, 0.0)
    unknown = np.full((1, records.shape[1]), nothing)
    rates = MODEL.pool(MODEL.init(1), np.concatenate([records, unknown]))["rates"]
    assert np.array_equal(rates, MODEL.pool(MODEL.init(1), records)["rates"])
