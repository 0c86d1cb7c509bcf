"""The first step at a batch size: what ranks measure of it, and what `adaptive` makes of that."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import strategies
from hvd_dbs.simulator import Conditions, Scenario, simulate
from hvd_dbs.simulator.cluster import Cluster
from hvd_dbs.simulator.costs import FREE
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.scenario import Noise


@pytest.fixture
def cluster():
    case = Scenario(
        name="first steps",
        global_batch_size=64,
        ranks=(AffineRanks(count=2, per_sample_ms=1.0),),
        noise=Noise(jitter=0.0),
        **{**vars(FREE), "switch_ms": 500},
    )
    one = Cluster(Conditions.of(case))
    one.play(np.array([32, 32]), 8)
    return one


def test_one_step_at_a_new_size_is_reported_as_no_pace(cluster):
    measurement = cluster.measure([cluster.play(np.array([40, 24]), 9)])
    assert measurement.num_steps.tolist() == [0, 0]
    assert measurement.busy_seconds.tolist() == pytest.approx([0.540, 0.524])
    measurement = cluster.measure([cluster.play(np.array([32, 32]), 10)])
    assert measurement.num_steps.tolist() == [1, 1]  # Both have had that.
    assert measurement.busy_seconds.tolist() == pytest.approx([0.032, 0.032])


def test_the_first_step_of_several_is_left_out_wherever_the_round_begins(cluster):
    whole = cluster.measure([cluster.play(np.array([40, 24]), 10)])
    assert whole.num_steps.tolist() == [1, 1]
    assert whole.busy_seconds.tolist() == pytest.approx([0.040, 0.024])
    pieces = [cluster.play(np.array([40, 24]), 13), cluster.play(np.array([20, 44]), 15)]
    assert cluster.measure(pieces).busy_seconds.tolist() == pytest.approx([0.020, 0.044])


def test_a_first_step_before_one_that_is_not_measured_is_no_pace_either(cluster):
    measurement = cluster.measure([cluster.play(np.array([40, 24]), 11)], unmeasured=9)
    assert measurement.num_steps.tolist() == [1, 1]
    measurement = cluster.measure([cluster.play(np.array([20, 44]), 13)], unmeasured=12)
    assert measurement.num_steps.tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_is_not_changed_before_what_first_steps_hide_is_seen(seed):
    """Once, plan followed plan in each step, and steps took up to ten times as long."""
    conditions = Conditions.of(
        Scenario(
            name="first steps of many ranks",
            global_batch_size=1536,
            ranks=(
                AffineRanks(count=9, fixed_ms=90, per_sample_ms=2.75, spread=0.08),
                AffineRanks(count=8, fixed_ms=36, per_sample_ms=11.3),
                AffineRanks(count=7, fixed_ms=24, per_sample_ms=8.0),
            ),
            steps=200,
            seed=seed,
            noise=Noise(jitter=0.005),
            switch_ms=300,
        )
    )
    run = simulate(conditions, strategies.adaptive())
    settled = run.true_seconds[60:].mean() / conditions.oracle_seconds[60:].mean()
    assert len(run.changes) < 12 and settled < 1.02
