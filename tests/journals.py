"""Journals for tests of those who read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulated_journal import simulated_job
from hvd_dbs.job.journal import Journal, JournalPart
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.simulator import Scenario
from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.scenario import Noise
from hvd_dbs.simulator.slowdowns import Neighbour

STEPS = 20
"""Of a round."""

HOSTS = ("a", "a", "b", "b", "c", "c")

_NEIGHBOUR = [
    Neighbour(ranks=(1,), from_step=first, to_step=first + 2 * STEPS, slowdown=2.5)
    for first in range(STEPS, 20 * STEPS, 5 * STEPS)
]

KINDS: Mapping[str, dict[str, Any]] = {
    "slow rank": {"speeds": (1, 1, 1, 0.4, 1, 1)},
    "slow host": {"speeds": (1, 1, 0.5, 0.5, 1, 1)},
    "neighbour": {"disturbances": _NEIGHBOUR},
    "input": {"input_ms": (0, 0, 0, 0, 90, 0)},
    "link": {"communication": Communication(gradient_megabytes=20, bandwidth_gbit=4)},
    "twice the link": {"communication": Communication(gradient_megabytes=20, bandwidth_gbit=8)},
    "nothing": {},
    "hopeless rank": {"speeds": (1, 1, 1, 0.03, 1, 1)},
    "weak rank": {"speeds": (1, 1, 1, 0.3, 1, 1)},
}
"""What is wrong with a job of six ranks on three hosts, two thirds of a millisecond a sample."""


JOB = JobEntry(("a", "b"), "dbs", 64)
"""Of two ranks."""


def a_round(step: int = 4, **changes: Any) -> RoundEntry:
    """A round of it."""
    fields: dict[str, Any] = {
        "epoch": 1,
        "step": step,
        "batch_sizes": (32, 32),
        "busy_seconds": (0.125, 0.25),
        "cpu_load": (0.0, 0.5),
        "step_seconds": 0.25,
        "plan_before": (32, 32),
        "plan": (43, 21),
        "reason": "rank 1 was slowest",
        "predicted_seconds": (0.25, 0.1875),
    }
    return RoundEntry(**{**fields, **changes})


def written(path: Path, *entries: Any) -> Path:
    """A journal of these entries."""
    journal = Journal(path)
    for entry in entries:
        journal.write(entry)
    return path


def simulated(kind: str, rounds: int = 20, strategy: str = "even") -> JournalPart:
    """The journal of a job with what is wrong in it, evenly split by default, 20 steps a round."""
    given = dict(KINDS[kind])
    speeds = np.array(given.pop("speeds", (1.0,) * len(HOSTS)), dtype=float)
    waits = np.array(given.pop("input_ms", (0.0,) * len(HOSTS)), dtype=float) / 1000
    scenario = Scenario(
        name=kind,
        global_batch_size=64 * len(HOSTS),
        ranks=[AffineRanks(fixed_ms=4 / one, per_sample_ms=0.6 / one) for one in speeds],
        steps=rounds * STEPS,
        steps_per_epoch=STEPS,
        noise=Noise(jitter=0.03),
        **given,
    )
    return simulated_job(scenario, HOSTS, strategy, waits + 0.0005)
