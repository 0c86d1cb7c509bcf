"""What presets do in a run: slow links, collectors, ranks that become slow."""

from dataclasses import replace

import numpy as np
import pytest

from hvd_dbs.balancing import strategies
from hvd_dbs.simulator import Conditions, simulate
from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.scenario import Noise
from hvd_dbs.simulator.simulation import preset, preset_names
from hvd_dbs.simulator.slowdowns import Neighbour
from hvd_dbs.simulator.suite import SCENARIO_CLASSES
from tests.unit.simulator.scenarios import scenario


def test_static_takes_the_undisturbed_speeds():
    conditions = Conditions.of(scenario())
    assert simulate(conditions, preset("static", conditions)).changes[0].batch_sizes.tolist() == [
        48,
        16,
    ]


def test_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"strategy='best'.*even, static, dbs"):
        preset("best", Conditions.of(scenario()))


@pytest.mark.parametrize("name", preset_names())
def test_a_slow_link_takes_samples_from_no_rank(name):
    """It slows all ranks alike: plans are those of a fast network, but for changes too small."""
    slow_link = Communication(gradient_megabytes=25, bandwidth_gbit=0.1, latency_us=20_000)
    equal = (AffineRanks(count=4, per_sample_ms=1.0),)
    unequal = (AffineRanks(per_sample_ms=1.0), AffineRanks(count=2, per_sample_ms=2.0))
    for ranks in (equal, unequal):
        plans = []
        for network in (Communication(), slow_link):
            conditions = Conditions.of(
                scenario(
                    ranks=ranks,
                    global_batch_size=96,
                    noise=Noise(jitter=0.02),
                    communication=network,
                )
            )
            run = simulate(conditions, preset(name, conditions))
            plans.append([change.batch_sizes.tolist() for change in run.changes])
        # Of a long step a change has to gain more to be worth it.
        most = 3 if name == "adaptive" else 0
        assert name == "adaptive" or plans[0] == plans[1]
        assert abs(np.array(plans[0][-1]) - plans[1][-1]).max() <= most
        assert ranks == unequal or abs(np.array(plans[1]) - 24).max() <= 2


@pytest.mark.parametrize(("chance", "factor"), [(0.01, 5.0), (0.03, 2.5), (0.05, 3.0)])
def test_adaptive_leaves_equal_ranks_alone_that_collectors_hold_up(chance, factor):
    """Start, changes and decisions together take less than 0.5 % of a short training."""
    noise = Noise(jitter=0.03, outlier_chance=chance, outlier_factor=factor)
    case = replace(SCENARIO_CLASSES["jitter"](32), noise=noise, steps=400, seed=3)
    conditions = Conditions.of(case)
    run = simulate(conditions, preset("adaptive", conditions))
    assert conditions.oracle_seconds.sum() > 0.995 * run.true_seconds.sum()
    assert len(set(run.changes[-1].batch_sizes.tolist())) == 1


@pytest.mark.parametrize("size", [16, 256])
def test_a_rank_that_becomes_slow_is_relieved_at_once_however_many_there_are(size):
    starts = [150 + 43 * k for k in range(6)]
    slow = [
        Neighbour(ranks=(k,), from_step=start, to_step=start + 40, slowdown=1.6)
        for k, start in enumerate(starts)
    ]
    one = scenario(
        global_batch_size=32 * size,
        ranks=(AffineRanks(count=size, fixed_ms=4.0, per_sample_ms=1.0),),
        steps=410,
        steps_per_epoch=410,
        noise=Noise(jitter=0.03),
        disturbances=tuple(slow),
        background_ms=2.0,  # Decisions that cost nothing are taken all the time.
        seed=5,
    )
    run = simulate(Conditions.of(one), strategies.adaptive())
    is_late = run.true_seconds > 1.3 * run.conditions.oracle_seconds
    assert 6 * 3 < np.count_nonzero(is_late[100:]) < 6 * 10
