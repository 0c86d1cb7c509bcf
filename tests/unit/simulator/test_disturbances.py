"""Each disturbance does what it says, to those to whom it says it."""

import numpy as np
import pytest

from hvd_dbs.simulator import Conditions, Scenario
from hvd_dbs.simulator.cluster import Cluster
from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.costs import FREE
from hvd_dbs.simulator.disturbances import DISTURBANCES, FalseAlarms, Join, Leave, Pauses
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.scenario import HostLoad, Noise
from hvd_dbs.simulator.slowdowns import (
    Drift,
    EpochFaults,
    Neighbour,
    RandomNeighbours,
    SlowNetwork,
    Thermal,
)

STEPS = 100


def seen(*disturbances, size=3, steps=STEPS):
    """Factors on rank times, readings after each step, and clock seconds of an even split."""
    scenario = Scenario(
        name="test",
        global_batch_size=10 * size,
        ranks=(AffineRanks(count=size, per_sample_ms=1.0),),
        steps=steps,
        noise=Noise(jitter=0.0),
        host_load=HostLoad(idle_load=0.0, idle_memory=0.0, load_noise=0.0),
        disturbances=disturbances,
        **vars(FREE),
    )
    conditions = Conditions.of(scenario)
    cluster = Cluster(conditions)
    batch_sizes = np.full(size, 10)
    rounds, seen = [], []
    for step in range(steps):
        rounds.append(cluster.play(batch_sizes, step + 1))
        seen.append(cluster.measure(rounds[-1:]))
    busy = np.stack([measurement.busy_seconds for measurement in seen]) / 0.010
    cpu = np.stack([measurement.cpu_load for measurement in seen])
    memory = np.stack([measurement.memory_load for measurement in seen])
    return busy, cpu, memory, conditions, rounds


def test_neighbour_slows_and_announces_itself():
    neighbour = Neighbour(ranks=(1,), from_step=20, to_step=30, slowdown=2.0, lead_steps=3)
    busy, cpu, memory, conditions, _ = seen(neighbour)
    expected = np.ones(STEPS)
    expected[20:30] = 2.0
    assert busy[:, 1] == pytest.approx(expected)
    assert np.all(busy[:, [0, 2]] == pytest.approx(1.0))
    load = np.zeros(STEPS)
    load[17:30] = 0.5
    assert cpu[:, 1] == pytest.approx(load)
    assert memory[:, 1] == pytest.approx(0.4 * load)
    assert np.all(cpu[:, [0, 2]] == 0)
    assert conditions.disturbed.tolist() == [20, 30]


def test_times_may_be_longer_than_any_run():
    """A mean that stands for "never" or "always" is one, not an overflow."""
    always = RandomNeighbours(mean_quiet_steps=1.0, mean_busy_steps=1e19, least_slowdown=2.0)
    busy, *_ = seen(always)
    assert np.all(busy[60:] > 1.9)
    never = RandomNeighbours(mean_quiet_steps=1e300)
    assert np.all(seen(never)[0] == pytest.approx(1.0))
    _, cpu, *_ = seen(FalseAlarms(chance=0.5, mean_steps=1e19, load=0.4))
    assert np.all(cpu[60:] > 0.3)


def test_neighbour_may_add_a_fixed_time():
    busy, *_ = seen(Neighbour(ranks=(0,), from_step=50, extra_ms=7.0, load=0.3))
    assert busy[49, 0] == pytest.approx(1.0)
    assert busy[50:, 0] == pytest.approx(np.full(50, 1.7))


def test_two_neighbours_multiply_and_leave_nothing_behind():
    busy, *_ = seen(
        Neighbour(ranks=(0,), from_step=10, to_step=40, slowdown=2.0),
        Neighbour(ranks=(0,), from_step=20, to_step=30, slowdown=1.5),
    )
    assert busy[[5, 15, 25, 35, 45], 0] == pytest.approx([1, 2, 3, 2, 1])


def test_random_neighbours_come_and_go():
    neighbours = RandomNeighbours(
        mean_quiet_steps=30, mean_busy_steps=10, least_slowdown=1.5, most_slowdown=2.5
    )
    busy, cpu, *_ = seen(neighbours, size=60, steps=400)
    slow = busy > 1.2
    assert 0.15 < slow.mean() < 0.35
    assert np.all((busy[slow] >= 1.5 - 1e-9) & (busy[slow] <= 2.5 + 1e-9))
    begins = slow[1:] & ~slow[:-1]
    assert np.all(cpu[1:][begins] > 0.1)
    assert np.all(cpu[:-1][begins] == 0.0)  # Nothing announces it.


def test_drift_ends_at_its_factor_and_stays():
    busy, *_ = seen(Drift(ranks=(2,), from_step=20, to_step=60, slowdown=2.0))
    assert busy[19, 2] == pytest.approx(1.0)
    assert np.all(np.diff(busy[:, 2]) >= -1e-9)
    assert busy[[60, 99], 2] == pytest.approx([2.0, 2.0])
    assert busy[40, 2] == pytest.approx(2.0 ** (5 / 8))


def test_thermal_has_levels_and_cools():
    hot = Thermal(ranks=(0,), from_step=10, to_step=60, slowdown=8.0, levels=3, steps_per_level=10)
    busy, *_ = seen(hot)
    assert busy[[9, 10, 20, 30, 59, 60], 0] == pytest.approx([1, 2, 4, 8, 8, 1])


def test_pauses_cost_time_but_do_not_move_the_oracle():
    busy, _, _, conditions, rounds = seen(Pauses(ranks=(1,), at_steps=(5, 50), pause_ms=20.0))
    assert busy[[4, 5, 50, 51], 1] == pytest.approx([1, 3, 3, 1])
    assert rounds[5].clock_seconds[0] == pytest.approx(0.030)
    assert rounds[5].true_seconds[0] == pytest.approx(0.010)
    assert conditions.disturbed.size == 0
    assert conditions.oracle_seconds == pytest.approx(np.full(STEPS, 0.010))


def test_random_pauses_come_at_their_chance():
    busy, *_ = seen(Pauses(chance=0.02, pause_ms=10.0), size=50, steps=400)
    assert 0.015 < (busy > 1.5).mean() < 0.025


def test_false_alarms_are_load_alone():
    busy, cpu, memory, *_ = seen(FalseAlarms(chance=0.01, mean_steps=5, load=0.4), size=50)
    assert np.all(busy == pytest.approx(1.0))
    assert 0.02 < (cpu > 0.1).mean() < 0.12
    assert np.all(memory == 0)


def test_ranks_away_are_not_part_of_the_job():
    case = Scenario(
        name="test",
        global_batch_size=30,
        ranks=(AffineRanks(count=3, per_sample_ms=1.0),),
        steps=20,
        disturbances=(Leave(ranks=(0,), at_step=15), Join(ranks=(2,), at_step=5)),
    )
    conditions = Conditions.of(case)
    present = [
        np.flatnonzero(conditions.timeline().segment(step).present).tolist()
        for step in (0, 4, 5, 14, 15, 19)
    ]
    assert present == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2], [1, 2], [1, 2]]
    assert conditions.oracle_seconds[[0, 5, 15]] == pytest.approx([0.015, 0.010, 0.015])


def test_one_more_disturbance_leaves_the_others_as_they_are():
    random = RandomNeighbours(mean_quiet_steps=20, mean_busy_steps=10)
    first, *_ = seen(random)
    second, *_ = seen(random, FalseAlarms(chance=0.1))
    assert np.array_equal(first, second)


def test_load_is_known_when_it_has_been_sampled():
    """Steps of 10 ms; a sample is the mean of the 50 ms before it, and known until the next."""
    case = Scenario(
        name="test",
        global_batch_size=2000,
        ranks=(AffineRanks(count=200, per_sample_ms=1.0),),
        steps=40,
        noise=Noise(jitter=0.0),
        host_load=HostLoad(idle_load=0.0, idle_memory=0.0, load_noise=0.0),
        disturbances=(Neighbour(from_step=20, load=0.5),),
        load_period_ms=50,
    )
    cluster = Cluster(Conditions.of(case))
    cpu = np.stack(
        [
            cluster.measure([cluster.play(np.full(200, 10), step + 1)]).cpu_load
            for step in range(case.steps)
        ]
    )
    first = np.isfinite(cpu).argmax(axis=0)
    assert set(first) == {0, 1, 2, 3, 4}  # Not all began at the same time.
    assert np.all(cpu[15:20] == 0.0)
    shows = (cpu > 0).argmax(axis=0) - 20
    assert set(shows) == {0, 1, 2, 3, 4}
    assert np.all(np.diff(cpu[20:], axis=0) >= -1e-9) and np.all(cpu[30:] == pytest.approx(0.5))
    half = (cpu[20:30] > 0.01) & (cpu[20:30] < 0.49)
    assert half.any(axis=0).mean() > 0.9  # Of a mean of before and after.


def test_unknown_load_stays_unknown():
    case = Scenario(
        name="test",
        global_batch_size=30,
        ranks=(AffineRanks(count=3, per_sample_ms=1.0),),
        host_load=None,
    )
    cluster = Cluster(Conditions.of(case))
    measurement = cluster.measure([cluster.play(np.full(3, 10), 5)])
    assert np.all(np.isnan(measurement.cpu_load))


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("neighbour", {"from_step": 9, "to_step": 9}, "to_step=9; expected a step after from_step"),
        ("neighbour", {"slowdown": 0.0}, "slowdown=0.0; expected a number above 0"),
        ("neighbour", {"load": 1.5}, "load=1.5; expected a number from 0 to 1"),
        ("neighbour", {"ranks": ()}, r"ranks=\(\); expected at least one rank"),
        ("neighbour", {"ranks": (-1,)}, "expected ranks from 0 on"),
        ("random_neighbours", {"most_slowdown": 1.0}, "most_slowdown=1.0; expected at least"),
        ("drift", {"to_step": 0, "slowdown": 2.0}, "to_step=0; expected a step after"),
        ("thermal", {"from_step": 5, "to_step": 30}, "to_step=30; expected a step after the last"),
        ("thermal", {"levels": 0}, "levels=0; expected a whole number from 1 on"),
        ("pauses", {"chance": 2.0}, "chance=2.0; expected a number from 0 to 1"),
        ("false_alarms", {"mean_steps": 0.0}, "mean_steps=0.0; expected a number above 0"),
        ("leave", {"at_step": 5}, "ranks=None; expected the ranks that leave"),
        ("join", {"at_step": 0, "ranks": (1,)}, "at_step=0; expected a whole number from 1 on"),
    ],
)
def test_impossible_disturbances_are_refused(kind, given, message):
    with pytest.raises(ValueError, match=message):
        DISTURBANCES[kind](**given)


def test_a_slow_link_is_slow_for_all_and_for_a_time():
    case = Scenario(
        name="test",
        global_batch_size=30,
        ranks=(AffineRanks(count=3, per_sample_ms=1.0),),
        steps=30,
        noise=Noise(jitter=0.0),
        communication=Communication(gradient_megabytes=10),
        disturbances=(SlowNetwork(ranks=(1,), from_step=10, to_step=20, slowdown=4.0),),
    )
    conditions = Conditions.of(case)
    seconds = Cluster(conditions).play(np.full(3, 10), 30).clock_seconds
    communication = seconds - 0.010
    assert communication[10:20] == pytest.approx(4 * communication[0])
    assert communication[20:] == pytest.approx(communication[:10])
    assert conditions.oracle_seconds == pytest.approx(seconds)  # Nothing can be made of it.


def test_faults_of_epochs_begin_and_end_with_epochs():
    faults = EpochFaults(steps_per_epoch=5, least_ms=5, most_ms=10, chance=0.1)
    busy, *_ = seen(faults, size=80, steps=2000)
    epochs = (busy > 1.2).reshape(400, 5, 80)
    assert np.all(epochs.all(axis=1) == epochs.any(axis=1))
    faulty = epochs[:, 0]
    # 12 epochs of 9 + 12 in the mean: the one in which it begins would else be the first.
    assert faulty.mean() == pytest.approx(12 / 21, abs=0.03)
    begins = ~faulty[:-1] & faulty[1:]
    assert begins.sum() / (~faulty[:-1]).sum() == pytest.approx(0.1, abs=0.02)
