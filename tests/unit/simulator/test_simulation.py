"""Runs: the same again by seed, exact sums, the same controller."""

from dataclasses import replace

import numpy as np
import pytest

from hvd_dbs.balancing import Controller, Measurement, strategies
from hvd_dbs.simulator import Conditions, figures_of, simulate
from hvd_dbs.simulator.cluster import Cluster
from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.disturbances import Join, Leave, Pauses
from hvd_dbs.simulator.rank_groups import AffineRanks, SaturatingRanks
from hvd_dbs.simulator.scenario import Noise
from hvd_dbs.simulator.simulation import preset, preset_names
from hvd_dbs.simulator.slowdowns import Neighbour
from hvd_dbs.simulator.suite import SCENARIO_CLASSES
from tests.unit.simulator.scenarios import QUIET, scenario


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("scenario_class", SCENARIO_CLASSES)
def test_same_seed_same_run_and_exact_sums(scenario_class, name):
    case = SCENARIO_CLASSES[scenario_class](8)
    case = replace(case, steps=130) if scenario_class != "membership" else case
    first, second = (
        simulate(conditions, preset(name, conditions))
        for conditions in (Conditions.of(case), Conditions.of(case))
    )
    assert np.array_equal(first.clock_seconds, second.clock_seconds)
    assert np.array_equal(first.true_seconds, second.true_seconds)
    assert [c.batch_sizes.tolist() for c in first.changes] == [
        c.batch_sizes.tolist() for c in second.changes
    ]
    figures = figures_of(first)
    assert figures.largest_sum_error == 0
    assert figures.largest_regret_seconds >= 0
    assert np.all(first.true_seconds >= first.conditions.oracle_seconds * (1 - 1e-9))
    low, high = case.bounds.in_units(case.global_batch_size)
    for change in first.changes:
        there = change.batch_sizes > 0
        assert np.all(change.batch_sizes[there] >= low[there])
        assert np.all(change.batch_sizes <= high)


def test_another_seed_is_another_run():
    case = scenario(noise=Noise(jitter=0.05))
    runs = [simulate(Conditions.of(replace(case, seed=seed)), strategies.even()) for seed in (1, 2)]
    assert not np.array_equal(runs[0].clock_seconds, runs[1].clock_seconds)


def test_all_strategies_meet_the_same_noise():
    """Two strategies with the same plan but other rounds see the same clock."""
    case = scenario(
        ranks=(AffineRanks(count=4, per_sample_ms=1.0),),
        noise=Noise(jitter=0.1, outlier_chance=0.05),
        disturbances=(Pauses(chance=0.05, pause_ms=50),),
        communication=Communication(gradient_megabytes=50),
    )
    conditions = Conditions.of(case)
    batch_sizes = np.full(4, 16)
    whole, pieces = Cluster(conditions), Cluster(conditions)
    at_once = whole.play(batch_sizes, 60).clock_seconds
    by_piece = [pieces.play(batch_sizes, stop).clock_seconds for stop in (7, 8, 33, 60)]
    assert np.array_equal(at_once, np.concatenate(by_piece))


def test_step_times_are_those_of_the_formula():
    """Cannikin: T_u + max_i max(a + P, a + gamma P + T_o), forward q b + s, backward k b + m."""
    group = AffineRanks(
        per_sample_ms=3.0, fixed_ms=10.0, forward_fraction=0.25, forward_fixed_fraction=0.6
    )
    slow_network = Communication(
        gradient_megabytes=100, bucket_megabytes=40, bandwidth_gbit=8, latency_us=50, gamma=0.3
    )
    case = scenario(ranks=(group, group), communication=slow_network)
    conditions = Conditions.of(case)
    cluster = Cluster(conditions)
    played = cluster.play(np.asarray([24, 40]), 1)
    samples = 40
    forward = 0.25 * 0.003 * samples + 0.6 * 0.010
    backward = 0.75 * 0.003 * samples + 0.4 * 0.010
    full_bucket = 2 * 50e-6 + 2 / 2 * 40e6 * 8 / 8e9
    last_bucket = 2 * 50e-6 + 2 / 2 * 20e6 * 8 / 8e9
    overlap = 2 * full_bucket
    ready = max(forward + backward, forward + 0.3 * backward + overlap)
    assert played.true_seconds[0] == pytest.approx(ready + last_bucket)
    measurement = cluster.measure([played])
    assert measurement.busy_seconds[1] == pytest.approx(forward + backward)
    assert measurement.first_bucket_seconds[1] == pytest.approx(forward + 0.3 * backward)
    assert measurement.overlap_seconds.tolist() == pytest.approx([overlap] * 2)
    assert measurement.last_bucket_seconds.tolist() == pytest.approx([last_bucket] * 2)


def test_saturating_ranks_are_flat_below_saturation():
    group = SaturatingRanks(per_sample_ms=1.0, fixed_ms=2.0, saturation=20)
    conditions = Conditions.of(scenario(ranks=(group, group)))
    assert conditions.curves.seconds(np.asarray([3, 20])).tolist() == pytest.approx([0.022] * 2)
    assert conditions.curves.seconds(np.asarray([21, 40])).tolist() == pytest.approx([0.023, 0.042])


def test_dbs_is_there_after_one_epoch():
    run = simulate(Conditions.of(scenario()), strategies.dbs())
    figures = figures_of(run)
    assert [change.batch_sizes.tolist() for change in run.changes] == [[32, 32], [48, 16]]
    assert figures.cold_start.steps == 10
    assert figures.cold_start.seconds == pytest.approx(10 * 0.096)
    assert figures.num_plan_changes == 1
    assert figures.largest_regret_seconds == pytest.approx(0.048)
    assert figures.throughput_over_oracle == pytest.approx(60 * 48 / (10 * 96 + 50 * 48))
    assert figures.second_half_over_oracle == pytest.approx(1.0)


def test_recoveries_follow_disturbances():
    neighbour = Neighbour(ranks=(0,), from_step=25, to_step=45, slowdown=3.0)
    run = simulate(Conditions.of(scenario(disturbances=(neighbour,))), strategies.dbs())
    recoveries = figures_of(run).recoveries
    assert [(entry.step, entry.steps) for entry in recoveries] == [(25, 15), (45, 5)]


def test_a_new_batch_size_costs_its_rank_once():
    cluster = Cluster(Conditions.of(scenario(switch_ms=500)))
    busy = []
    for batch_sizes in ([32, 32], [32, 16], [48, 16], [32, 32], [48, 16]):
        played = cluster.play(np.asarray(batch_sizes), cluster.step + 2)
        busy.append((played.busy[0] - played.busy[1]).tolist())
    assert busy == [[0, 0], [0, pytest.approx(0.5)], [pytest.approx(0.5), 0], [0, 0], [0, 0]]


def test_a_change_of_plan_costs_what_the_scenario_says():
    free, dear = (
        simulate(Conditions.of(scenario(switch_ms=cost)), strategies.dbs()) for cost in (0, 500)
    )
    extra = dear.true_seconds - free.true_seconds
    assert extra[10] == pytest.approx(0.5)
    assert np.count_nonzero(extra) == 1


@pytest.mark.parametrize(("every", "decisions"), [("epoch", 5), (7, 7), (60, 0), (1, 53)])
def test_decisions_fall_where_the_cadence_says(every, decisions):
    strategy = replace(strategies.dbs(), every=every)
    assert simulate(Conditions.of(scenario()), strategy).num_decisions == decisions


def test_plans_hold_where_a_job_lets_them():
    """2 steps after a decision within an epoch, at once at its end, never beyond it."""
    for every, first in ((4, 5 + 2), (7, 10), (9, 10)):
        strategy = replace(strategies.dbs(), every=every)
        assert simulate(Conditions.of(scenario()), strategy).changes[1].step == first
    strategy = replace(strategies.dbs(), every=4)
    assert simulate(Conditions.of(scenario(steps_ahead=0)), strategy).changes[1].step == 5


@pytest.mark.parametrize(
    ("every", "field", "steps"),
    [
        ("epoch", "decision_ms", [10, 20, 30, 40, 50]),
        (18, "background_ms", [20, 40]),  # The first step of an epoch is not measured.
    ],
)
def test_a_decision_costs_what_the_scenario_says(every, field, steps):
    strategy = replace(strategies.dbs(), every=every)
    free, waited, beside = (
        simulate(Conditions.of(scenario(**costs)), strategy).true_seconds
        for costs in ({}, {"decision_ms": 5}, {"background_ms": 5})
    )
    extra = {"decision_ms": waited - free, "background_ms": beside - free}
    assert np.flatnonzero(extra[field] > 1e-9).tolist() == steps
    assert extra.pop(field)[steps[0]] == pytest.approx(0.005)
    assert not next(iter(extra.values())).any()


def test_one_decision_in_ten_costs_more():
    case = scenario(steps=4000, noise=QUIET)
    late = replace(case, decision_ms=1, decision_p90_ms=20)
    free, dear = (
        simulate(Conditions.of(one), strategies.dbs()).true_seconds for one in (case, late)
    )
    extra = (dear - free)[10::10]
    assert sorted(set(np.round(extra, 6))) == [0.001, 0.020]
    assert 0.05 < (extra > 0.01).mean() < 0.15


def test_ranks_signal_changes_to_each_other():
    """In peace a decision falls each 20 steps or more; what comes in between need not wait."""
    case = scenario(
        ranks=(AffineRanks(count=4, fixed_ms=2, per_sample_ms=1.0),),
        global_batch_size=128,
        steps=160,
        steps_per_epoch=200,
        background_ms=2,
        noise=Noise(jitter=0.01),
        disturbances=(Neighbour(ranks=(1,), from_step=150, slowdown=2.0, load=0.0),),
    )
    changes = simulate(Conditions.of(case), strategies.adaptive()).changes
    # Two steps to be sure, one to tell, two ahead.
    met = [change.batch_sizes[1] for change in changes if change.step in range(151, 156)]
    assert changes[0].batch_sizes[1] == 32
    assert len(met) == 1 and met[0] < 24


def test_steps_of_one_plan_are_one_measurement_in_however_many_pieces():
    case = scenario(ranks=(AffineRanks(count=2, per_sample_ms=1.0),), noise=Noise(jitter=0.1))
    measured = []
    for stops in ([4, 12], [4, 5, 8, 12]):
        cluster = Cluster(Conditions.of(case))
        pieces = [
            cluster.play(np.asarray([32, 32] if stop == 4 else [40, 24]), stop) for stop in stops
        ]
        measured.append(cluster.measure(pieces, unmeasured=10))
    assert measured[0].num_steps.tolist() == measured[1].num_steps.tolist()
    np.testing.assert_allclose(measured[0].busy_seconds, measured[1].busy_seconds)


def test_ranks_are_measured_at_the_size_they_ran_last():
    case = scenario(ranks=(AffineRanks(count=3, per_sample_ms=1.0),), global_batch_size=60)
    cluster = Cluster(Conditions.of(case))
    before = cluster.play(np.asarray([20, 20, 20]), 15)
    after = cluster.play(np.asarray([30, 10, 20]), 19)
    measurement = cluster.measure([before, after], unmeasured=10)
    assert measurement.batch_sizes.tolist() == [30, 10, 20]
    assert measurement.busy_seconds.tolist() == pytest.approx([0.030, 0.010, 0.020])
    assert measurement.num_steps.tolist() == [2, 2, 16]


def test_the_controller_of_a_job_decides_the_same():
    """A job would feed each rank's row to a controller of its own."""
    conditions = Conditions.of(scenario(noise=Noise(jitter=0.1)))
    run = simulate(conditions, strategies.dbs())
    cluster, bounds = Cluster(conditions), conditions.scenario.bounds
    controllers = [Controller(strategies.dbs(), 64, bounds) for _ in range(2)]
    plans = [controllers[0].plan.batch_sizes]
    for stop in range(10, 60, 10):
        batch_sizes = np.asarray(controllers[0].plan.batch_sizes)
        seen = cluster.measure([cluster.play(batch_sizes, stop)], unmeasured=10)
        records = np.concatenate(
            [
                controller.observe(
                    Measurement.of([seen.batch_sizes[rank]], [seen.busy_seconds[rank]])
                )
                for rank, controller in enumerate(controllers)
            ]
        )
        decision = controllers[0].decide(records)
        controllers[1].adopt(decision.plan)
        if decision.changed:
            plans.append(decision.plan.batch_sizes)
    assert [tuple(change.batch_sizes.tolist()) for change in run.changes] == plans


def test_ranks_leave_and_join():
    case = scenario(
        ranks=(AffineRanks(count=4, per_sample_ms=1.0),),
        disturbances=(Leave(ranks=(3,), at_step=25), Join(ranks=(0,), at_step=45)),
    )
    run = simulate(Conditions.of(case), strategies.dbs())
    resizes = [change for change in run.changes if change.resized]
    assert [(change.step, change.batch_sizes.tolist()) for change in resizes] == [
        (25, [0, 33, 31, 0]),
        (45, [22, 21, 21, 0]),
    ]
    assert all(change.batch_sizes.sum() == 64 for change in run.changes)
    assert run.conditions.disturbed.tolist() == [25, 45]


def test_fixed_splits_keep_their_ratios_when_ranks_leave():
    case = scenario(
        ranks=(AffineRanks(count=3, per_sample_ms=1.0),),
        disturbances=(Leave(ranks=(1,), at_step=25),),
    )
    run = simulate(Conditions.of(case), strategies.static([1, 4, 3]))
    assert [change.batch_sizes.tolist() for change in run.changes] == [[8, 32, 24], [16, 0, 48]]


def test_leaving_too_few_says_when():
    case = scenario(
        ranks=(AffineRanks(count=2, per_sample_ms=1.0, max_batch_size=40),),
        disturbances=(Leave(ranks=(1,), at_step=25),),
    )
    with pytest.raises(ValueError, match=r"at step 25 the ranks present can take 1 to 40"):
        Conditions.of(case)
