"""Replays of a job: what another strategy gets there is near what the true cluster gives it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from hvd_dbs.balancing import Controller
from hvd_dbs.balancing.measurement import typical_seconds
from hvd_dbs.simulator import Conditions, Scenario, simulate
from hvd_dbs.simulator.cluster import Cluster
from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.costs import STEPS_AHEAD
from hvd_dbs.simulator.curve_fit import fit_curve
from hvd_dbs.simulator.job_rounds import JobRounds
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.replay import replay_of
from hvd_dbs.simulator.scenario import Noise
from hvd_dbs.simulator.simulation import preset
from hvd_dbs.simulator.slowdowns import Neighbour

EPOCH = 20


def cluster(name="test", **given):
    """Three speeds, with a fixed part that the journal does not tell."""
    ranks = tuple(
        AffineRanks(fixed_ms=fixed, per_sample_ms=per_sample)
        for fixed, per_sample in ((10, 1.0), (10, 1.3), (15, 2.0), (30, 3.5))
    )
    given = {"ranks": ranks, "global_batch_size": 256, "steps": 400, "seed": 5} | given
    return Scenario(name=name, steps_per_epoch=EPOCH, **given)


CASES = {
    "static": cluster(noise=Noise(jitter=0.02)),
    "noisy": cluster(noise=Noise(jitter=0.08)),
    "neighbour": cluster(
        ranks=(AffineRanks(count=4, fixed_ms=10, per_sample_ms=2.0),),
        disturbances=(
            Neighbour(ranks=(1,), from_step=80, to_step=180, slowdown=2.0),
            Neighbour(ranks=(1,), from_step=260, to_step=340, slowdown=2.0),
        ),
    ),
    "neighbour within epochs": cluster(
        ranks=(AffineRanks(count=4, fixed_ms=10, per_sample_ms=2.0),),
        disturbances=tuple(
            Neighbour(ranks=(1,), from_step=step, to_step=step + 10, slowdown=2.0)
            for step in range(5, 400, 20)
        ),
    ),
    "neighbour from epoch to epoch": cluster(
        ranks=(AffineRanks(count=4, fixed_ms=10, per_sample_ms=2.0),),
        disturbances=tuple(
            Neighbour(ranks=(1,), from_step=step, to_step=step + 30, slowdown=2.0)
            for step in range(5, 400, 57)
        ),
    ),
    "slow link": cluster(
        communication=Communication(gradient_megabytes=25, bandwidth_gbit=4, latency_us=500)
    ),
}


def rounds_of(scenario, name, known=()):
    """What the journal of a job says whose strategy decides at the end of epochs, or never.

    Args:
        scenario: What it runs on.
        name: Its strategy.
        known: Parts of the communication that it has measured.
    """
    conditions = Conditions.of(scenario)
    strategy = preset(name, conditions)
    controller = Controller(
        strategy, scenario.global_batch_size, scenario.bounds, num_rows=scenario.size
    )
    played = Cluster(conditions)
    seen, steps = [], []
    for stop in range(EPOCH, scenario.steps + 1, EPOCH):
        piece = played.play(np.asarray(controller.plan.batch_sizes), stop)
        seen.append(played.measure([piece], unmeasured=EPOCH))
        steps.append(typical_seconds(piece.clock_seconds))
        controller.decide(controller.observe(seen[-1]))

    def rows(field):
        return np.stack([getattr(one, field) for one in seen])

    unknown = np.full((len(seen), scenario.size), np.nan)
    return JobRounds(
        name="run.jsonl",
        strategy=name,
        global_batch_size=scenario.global_batch_size,
        lengths=np.full(len(seen), EPOCH),
        steps_per_epoch=EPOCH,
        batch_sizes=rows("batch_sizes"),
        busy_seconds=rows("busy_seconds"),
        quartile_seconds=rows("quartile_seconds"),
        cpu_load=rows("cpu_load"),
        step_seconds=np.array(steps),
        first_bucket_seconds=rows("first_bucket_seconds") if known else unknown,
        overlap_seconds=rows("overlap_seconds")[:, 0] if known else unknown[:, 0],
        last_bucket_seconds=rows("last_bucket_seconds")[:, 0] if known else unknown[:, 0],
        steps_ahead=np.zeros(len(seen)),
    )


def second_half(scenario, name):
    """Mean seconds of a step of the second half."""
    conditions = Conditions.of(scenario)
    run = simulate(conditions, preset(name, conditions))
    return run.clock_seconds[scenario.steps // 2 :].mean()


@pytest.mark.parametrize("wanted", ["even", "dbs", "adaptive"])
@pytest.mark.parametrize("journalled", ["dbs", "even"])
@pytest.mark.parametrize("case", CASES)
def test_another_strategy_is_foreseen_within_5_percent(case, journalled, wanted):
    scenario = CASES[case]
    foreseen = replay_of(rounds_of(scenario, journalled), seed=77).scenario
    assert foreseen.steps == scenario.steps
    assert second_half(foreseen, wanted) == pytest.approx(second_half(scenario, wanted), rel=0.05)


@pytest.mark.parametrize("jitter", [0.0, 0.02, 0.1])
def test_noise_is_that_of_steps_however_rounds_differ(jitter):
    rounds = rounds_of(cluster(noise=Noise(jitter=jitter)), "even")
    wander = np.exp(0.03 * np.random.default_rng(1).standard_normal(rounds.busy_seconds.shape))
    seconds = {
        name: getattr(rounds, name) * wander for name in ("busy_seconds", "quartile_seconds")
    }
    found = replay_of(replace(rounds, **seconds)).scenario.noise.jitter
    assert found == pytest.approx(jitter, rel=0.15, abs=0.002)


def test_rounds_of_an_older_journal_that_differ_are_not_taken_for_noise_of_their_steps():
    """The machine drifts from round to round; the steps of a round are all the same."""
    rounds = rounds_of(cluster(noise=Noise(jitter=0.0)), "even")
    rounds = replace(rounds, quartile_seconds=np.full_like(rounds.busy_seconds, np.nan))
    drift = 1 + 0.1 * np.random.default_rng(1).standard_normal(rounds.busy_seconds.shape)
    busy = 0.1 * drift
    rounds = replace(rounds, busy_seconds=busy, step_seconds=busy.max(axis=1) + 0.001)
    foreseen = replay_of(rounds).scenario
    mean = rounds.step_seconds[len(drift) // 2 :].mean()
    assert second_half(foreseen, "even") == pytest.approx(mean, rel=0.02)


def test_the_parts_of_the_communication_are_used_where_they_are_known():
    scenario = CASES["slow link"]
    scenario = replace(
        scenario,
        communication=Communication(
            gradient_megabytes=100, bucket_megabytes=25, bandwidth_gbit=10, gamma=0.2
        ),
    )
    overlap, last = scenario.communication.seconds(4)
    found = replay_of(rounds_of(scenario, "dbs", known=True)).scenario.communication.seconds(4)
    assert found == pytest.approx((overlap, last), rel=0.05)


def test_a_long_journal_takes_little_memory():
    """Once, 10 kilobytes a round and rank: gigabytes for the journal of some days."""
    rounds = rounds_of(CASES["static"], "even")
    arrays = {name: one for name, one in vars(rounds).items() if isinstance(one, np.ndarray)}
    many = {name: np.resize(one, (10_000, *one.shape[1:])) for name, one in arrays.items()}
    tracemalloc.start()
    try:
        long = replay_of(replace(rounds, **many)).scenario
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10_000 * 4 * 2_500  # Rounds, ranks, bytes.
    expected = replay_of(rounds).scenario.communication.seconds(4)
    assert long.communication.seconds(4) == pytest.approx(expected, rel=0.05, abs=1e-4)


def test_plans_hold_as_late_as_they_did_in_the_job():
    rounds = rounds_of(CASES["slow link"], "even")
    assert replay_of(rounds).scenario.steps_ahead == STEPS_AHEAD  # An older journal.
    ahead = np.full(len(rounds.lengths), 4.0)
    ahead[0] = 1.0
    assert replay_of(replace(rounds, steps_ahead=ahead)).scenario.steps_ahead == 5


def test_how_far_a_plan_is_from_what_was_measured():
    replay = replay_of(rounds_of(CASES["static"], "even"))
    assert replay.beyond(np.array([64, 64, 64, 64]))[1] == 1.0
    assert replay.beyond(np.array([100, 76, 64, 16])) == (3, 4.0)


def test_a_rank_without_a_usable_time_is_named():
    rounds = rounds_of(CASES["static"], "even")
    rounds.busy_seconds[:, 2] = np.nan
    with pytest.raises(ValueError, match=r"rank 2 has no usable busy_seconds in any of the 20"):
        replay_of(rounds)


def test_a_curve_is_a_line_through_what_was_visited():
    samples = np.array([20.0, 40, 60, 40, 20])
    curve = fit_curve(samples, 0.010 + 0.001 * samples, np.full(5, 20.0))
    assert curve.at(np.array([10.0, 30, 120])) == pytest.approx([0.020, 0.040, 0.130], rel=0.03)


def test_of_one_visited_batch_size_a_tenth_of_the_time_is_taken_to_be_fixed():
    curve = fit_curve(np.full(4, 50.0), np.full(4, 0.100), np.full(4, 20.0))
    assert curve.at(np.array([50.0, 100])) == pytest.approx([0.100, 0.190])


def test_slow_periods_are_no_part_of_the_curve():
    samples = np.array([50.0, 50, 50, 30, 30, 50, 50])
    slow = np.array([1, 1, 2, 2, 2, 1, 1.0])
    curve = fit_curve(samples, slow * (0.005 + 0.001 * samples), np.full(7, 20.0))
    assert curve.at(np.array([50.0, 30])) == pytest.approx([0.055, 0.035], rel=0.05)


def test_a_visited_batch_size_takes_what_it_took_in_the_mean():
    seconds = np.where(np.arange(40) % 4 == 0, 0.11, 0.1)
    curve = fit_curve(np.full(40, 32.0), seconds, np.full(40, 12.0))
    assert curve.at(np.array([32.0]))[0] == pytest.approx(np.mean(seconds), rel=2e-3)
