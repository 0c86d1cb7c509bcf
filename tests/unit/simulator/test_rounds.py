"""What the rounds of a simulation measure."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing import strategies
from hvd_dbs.simulator import Scenario, simulate
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.disturbances import Neighbour
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.scenario import Noise


def test_a_round_is_of_the_batch_size_that_it_is_said_to_be_of():
    """Also where a plan begins with an epoch, whose first step is not measured."""
    neighbour = Neighbour(ranks=(3,), from_step=64, to_step=137, slowdown=2.5)
    conditions = Conditions.of(
        Scenario(
            name="rounds",
            global_batch_size=128,
            ranks=[AffineRanks(count=2, per_sample_ms=1), AffineRanks(count=2, per_sample_ms=2)],
            steps=300,
            steps_per_epoch=4,
            noise=Noise(jitter=0.0),
            switch_ms=0.0,
            disturbances=[neighbour],
        )
    )
    per_sample = np.array([1.0, 1.0, 2.0, 2.0])
    seen = []

    def on_round(step, measurement):
        seen.append((step, 1000 * measurement.busy_seconds / measurement.batch_sizes / per_sample))

    simulate(conditions, strategies.adaptive(), on_round=on_round)
    settled = [pace for step, pace in seen if step < 64 or step > 64 + 60 or 70 < step < 137]
    paces = np.array(settled)
    paces = paces[np.isfinite(paces).all(axis=1)]
    assert len(paces) > 20
    is_usual, is_slow = np.isclose(paces, 1.0), np.isclose(paces, 2.5)
    assert (is_usual | is_slow).mean() > 0.99 and is_slow[:, 3].sum() > 5
