"""Elastic jobs under real faults. More schedules: scripts/chaos.sh --seed S --runs N."""

from __future__ import annotations

import pytest

from tests.chaos.disturbance import run_schedule
from tests.chaos.schedule import Fault, Schedule

FAULTS = {
    "rank 0 dies, then another while it is being replaced": Schedule(
        *(0, 3, "adaptive", "constant", 2),
        (Fault(8, "kill rank 0", 0.0, True, 0.0), Fault(8, "kill another", 1.0, False, 0.0)),
    ),
    "a host comes, another one goes, the global batch follows": Schedule(
        *(0, 2, "dbs", "per_rank", 1),
        (
            Fault(6, "add a host", 0.0, False, 0.0),
            Fault(20, "raise an exception", 0.0, False, 0.0),
        ),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_training_comes_to_the_end_it_would_have_had(name, tmp_path):
    outcome = run_schedule(FAULTS[name], tmp_path, gloo_timeout=8)
    assert outcome.problems == [], outcome.output[-6000:]
    assert outcome.num_runs > 1, outcome.output[-6000:]
