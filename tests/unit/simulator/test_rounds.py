"""What ranks report of a round in which they have signalled a change."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing import Measurement
from hvd_dbs.simulator import Scenario
from hvd_dbs.simulator.cluster import Played
from hvd_dbs.simulator.communication import StepRule
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.watch import Watch


def played(start, samples, seconds):
    busy = np.array(seconds)[:, np.newaxis]
    whole = StepRule(0.0, 0.0), busy[:, 0], busy[:, 0]
    return Played(start, np.array([samples]), busy, None, *whole, np.zeros(1, dtype=bool))


def test_steps_before_a_new_plan_are_not_reported_as_those_of_its_batch_size():
    """Nor where the plan's only step so far is the first of an epoch, which is not measured."""
    ranks = [AffineRanks(count=1, per_sample_ms=1)]
    watch = Watch(Scenario(name="one", global_batch_size=16, ranks=ranks, steps_per_epoch=20))
    plain = Measurement.of([16], [1.0], num_steps=[10])
    watch.end_round([played(121, 16, [1.0] * 10)], plain, np.array([0]))
    slow = played(131, 16, [2.0] * 9)
    watch.look([slow])
    assert watch.has_changed
    unknown = Measurement.of([8], [np.nan], num_steps=[0])
    reported = watch.end_round([slow, played(140, 8, [1.1])], unknown, np.array([0]))
    assert np.isnan(reported.busy_seconds).all()


def test_the_slow_steps_alone_are_reported():
    ranks = [AffineRanks(count=1, per_sample_ms=1)]
    watch = Watch(Scenario(name="one", global_batch_size=16, ranks=ranks, steps_per_epoch=20))
    plain = Measurement.of([16], [1.0], num_steps=[10])
    watch.end_round([played(121, 16, [1.0] * 10)], plain, np.array([0]))
    steps = played(131, 16, [1.0, 1.0, 2.0, 2.2])
    watch.look([steps])
    reported = watch.end_round([steps], plain, np.array([0]))
    assert reported.busy_seconds.tolist() == [2.1] and reported.num_steps.tolist() == [2]
