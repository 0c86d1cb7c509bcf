"""Events of ranks that fall, from rounds of the simulator, which drives the job's controller."""

from __future__ import annotations

import pytest

from hvd_dbs.balancing import strategies
from hvd_dbs.job.lasting_events import LastingEvents
from hvd_dbs.job.scores import RankScores
from hvd_dbs.simulator import Scenario, simulate
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.disturbances import Neighbour, Pauses
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.scenario import Noise

FELL_AT, RECOVERED_AT = 333, 600
STEPS_OF_200_MS_IN_HALF_AN_HOUR = 9_000


def events_of(strategy, seed, *disturbances, steps=700, noise=0.05):
    """(Step, event) of all that happened on four ranks, two of them slower for good."""
    scenario = Scenario(
        name="events",
        global_batch_size=256,
        ranks=[
            AffineRanks(count=2, fixed_ms=10.0, per_sample_ms=2.0),
            AffineRanks(count=2, fixed_ms=10.0, per_sample_ms=4.0),
        ],
        steps=steps,
        steps_per_epoch=100,
        seed=seed,
        noise=Noise(jitter=noise),
        disturbances=disturbances,
    )
    scores, lasting = RankScores.of(scenario.size), LastingEvents()
    seen, steps_before = [], 0

    def on_round(step, measurement):
        nonlocal scores, steps_before
        scores, events = scores.after(measurement.batch_sizes, measurement.busy_seconds)
        lasting_ones = lasting.after(events, step - steps_before)
        seen.extend((step, event) for event in lasting_ones)
        steps_before = step

    simulate(Conditions.of(scenario), strategies.PRESETS[strategy](), on_round=on_round)
    return seen


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("strategy", ["adaptive", "observe"])
def test_a_slowdown_by_half_is_an_event_within_20_steps(strategy, rank, seed):
    slow = Neighbour(ranks=(rank,), from_step=FELL_AT, to_step=RECOVERED_AT, slowdown=2.0)
    seen = events_of(strategy, seed, slow)
    assert [(event.rank, event.is_slow) for _, event in seen] == [(rank, True), (rank, False)]
    (fell, _), (recovered, _) = seen
    assert FELL_AT < fell <= FELL_AT + 20
    assert recovered > RECOVERED_AT


@pytest.mark.parametrize("strategy", ["adaptive", "observe"])
def test_noise_and_collections_of_garbage_are_no_events_in_half_an_hour(strategy):
    """A pause of a second in every hundredth step of a rank, and noise of 10 %."""
    pauses = Pauses(chance=0.01, pause_ms=1000.0)
    steps = STEPS_OF_200_MS_IN_HALF_AN_HOUR
    assert events_of(strategy, 0, pauses, steps=steps, noise=0.1) == []
