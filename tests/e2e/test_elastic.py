"""Elastic jobs under real faults, each rank on an emulated host of its own where that is possible.

More schedules: scripts/chaos.sh --seed S --runs N [--hosts].
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.chaos.disturbance import Pace, run_schedule, undisturbed
from tests.chaos.schedule import (
    CUT,
    CUT_FOR_5_S,
    POWER_OFF,
    SLOW_HOSTS,
    UNTIL_NAMED,
    Fault,
    Schedule,
)
from tests.hosts import MISSING

pytestmark = pytest.mark.alone

ON_HOSTS = {
    "rank 0's host loses its power, then another rank dies while it is being replaced": Schedule(
        *(0, 3, "adaptive", "constant", 2),
        (Fault(8, POWER_OFF, 0.0, True, 0.0), Fault(8, "kill another", 1.0, False, 0.0)),
        on_hosts=True,
    ),
    "one is frozen, a host comes, one is cut off for a moment, another for good": Schedule(
        *(0, 2, "dbs", "per_rank", 1),
        (
            Fault(12, UNTIL_NAMED, 0.0, False, 0.0),
            Fault(13, "add a host", 0.0, False, 0.0),
            Fault(17, CUT_FOR_5_S, 0.0, False, 0.9),
            Fault(22, CUT, 0.0, False, 0.9),
        ),
        on_hosts=True,
    ),
}
ON_THIS_MACHINE = {
    "rank 0 dies, then another while it is being replaced": Schedule(
        *(0, 3, "adaptive", "constant", 2),
        (Fault(8, "kill rank 0", 0.0, True, 0.0), Fault(8, "kill another", 1.0, False, 0.0)),
    ),
    "one is frozen, a host comes, another one goes, the global batch follows": Schedule(
        *(0, 2, "dbs", "per_rank", 1),
        (
            Fault(16, UNTIL_NAMED, 0.0, False, 0.0),
            Fault(17, "add a host", 0.0, False, 0.0),
            Fault(22, "raise an exception", 0.0, False, 0.0),
        ),
    ),
}
FAULTS = {
    **(ON_THIS_MACHINE if MISSING else ON_HOSTS),
    "one is at 3 % of the others and leaves, one at 30 % stays": SLOW_HOSTS,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """All at once: most of the time they wait."""
    folders = {name: tmp_path_factory.mktemp("chaos") for name in FAULTS}

    def run(name):
        pace = Pace(gloo_timeout=8, start_seconds=5, abort_seconds=6, step_seconds=0.02)
        return run_schedule(FAULTS[name], folders[name], pace)

    with ThreadPoolExecutor(len(FAULTS) + 1) as pool:
        pool.submit(undisturbed)  # Remembered for whom it is compared with.
        return dict(zip(FAULTS, pool.map(run, FAULTS), strict=True))


@pytest.mark.parametrize("name", FAULTS)
def test_training_comes_to_the_end_it_would_have_had(name, outcomes):
    outcome = outcomes[name]
    assert outcome.problems == [], outcome.output[-6000:]
    assert outcome.happened == [fault.kind for fault in FAULTS[name].faults]
    assert "TensorFlow computes the same" in outcome.output  # One host has no native library.
    assert outcome.num_runs > 1, outcome.output[-6000:]
    # Rank 0 says whenever the ranks have met which there are, and their plan.
    told = re.findall(
        r"(\d) ranks? now: global batch (\d+), local batch sizes \[(.*)\]", outcome.output
    )
    assert len(told) >= 2, outcome.output[-6000:]
    for size, global_batch_size, plan in told:
        batch_sizes = [int(number) for number in plan.split(", ")]
        assert (len(batch_sizes), sum(batch_sizes)) == (int(size), int(global_batch_size))
