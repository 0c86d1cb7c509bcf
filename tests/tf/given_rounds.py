"""A job of two ranks, and rounds of it."""

from __future__ import annotations

import math

from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.job.scores import scores_of

JOB = JobEntry(("node1", "node2"), "even", 64)


def entry(**changes):
    fields = {
        "epoch": 1,
        "step": 4,
        "batch_sizes": (32, 32),
        "busy_seconds": (0.125, 0.25),
        "cpu_load": (math.nan, 0.5),
        "step_seconds": 0.25,
        "plan_before": (32, 32),
        "plan": (43, 21),
        "reason": "rank 1 was slowest",
        "predicted_seconds": (0.25, 0.1875),
        "num_steps": 10,
    }
    return RoundEntry(**{**fields, **changes})


SCORES = scores_of(2, 3 * [((32, 32), (0.125, 0.25))])
