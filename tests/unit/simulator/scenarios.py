"""Small scenarios in which balancing costs nothing."""

from hvd_dbs.simulator import Scenario
from hvd_dbs.simulator.costs import FREE
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.scenario import Noise

TWO = (AffineRanks(per_sample_ms=1.0), AffineRanks(per_sample_ms=3.0))
QUIET = Noise(jitter=0.0)


def scenario(**given):
    given = {
        "name": "test",
        "global_batch_size": 64,
        "ranks": TWO,
        "steps": 60,
        "steps_per_epoch": 10,
        "noise": QUIET,
        **vars(FREE),
    } | given
    return Scenario(**given)
