"""What ranks report of a round in which they have signalled a change."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing import Measurement
from hvd_dbs.balancing.change_signal import ExpectedSteps
from hvd_dbs.simulator import Scenario
from hvd_dbs.simulator.cluster import Played
from hvd_dbs.simulator.communication import StepRule
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.watch import Watch


def played(start, samples, seconds):
    busy = np.array(seconds)[:, np.newaxis]
    whole = StepRule(0.0, 0.0), busy[:, 0], busy[:, 0]
    return Played(start, np.array([samples]), busy, None, *whole, np.zeros(1, dtype=bool))


def watching(last_round):
    ranks = [AffineRanks(count=1, per_sample_ms=1)]
    scenario = Scenario(name="one", global_batch_size=16, ranks=ranks, steps_per_epoch=20)
    watch = Watch(scenario, np.array([0]))
    watch.expected = ExpectedSteps.by_last_round(last_round)
    return watch


def test_steps_before_a_new_plan_are_not_reported_as_those_of_its_batch_size():
    """Nor where the plan's only step so far is the first of an epoch, which is not measured."""
    plain = Measurement.of([16], [1.0], num_steps=[10])
    watch = watching(plain)
    slow = played(131, 16, [2.0] * 9)
    watch.look([slow])
    assert watch.has_changed
    unknown = Measurement.of([8], [np.nan], num_steps=[0])
    reported = watch.end_round([slow, played(140, 8, [1.1])], unknown)
    assert np.isnan(reported.busy_seconds).all()


def test_the_slow_steps_alone_are_reported():
    plain = Measurement.of([16], [1.0], num_steps=[10])
    watch = watching(plain)
    steps = played(131, 16, [1.0, 1.0, 2.0, 2.2])
    watch.look([steps])
    reported = watch.end_round([steps], plain)
    assert reported.busy_seconds.tolist() == [2.1] and reported.num_steps.tolist() == [2]
