"""The figures of a round that dashboards show, by name; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.job.scores import RankScores
from hvd_dbs.job.step_metrics import StepMetrics

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "efficiency": "Part of a step in which a rank computes, mean of all ranks.",
        "waiting": "Part of a step in which a rank waits for slower ones, mean of all ranks.",
        "step_seconds": "Seconds of a step.",
        "global_batch_size": "Samples of all ranks in a step.",
        "batch_size": "Samples of the rank in a step.",
        "busy_seconds": "The rank's own work in a step.",
        "input_seconds": "Part of the rank's work in which a step waits for its data.",
        "cpu_load": "Use of the rank's processors by others, 0 to 1.",
        "throttled_share": "Part of the time in which the rank's CPU quota was used up.",
        "page_faults": "Page faults of the rank's process in a step.",
        "against_others": "The rank's speed over the median of the other ranks'.",
        "against_own_best": "The rank's speed over its own best.",
    }
)
"""What each figure is."""


def job_figures(job: JobEntry, entry: RoundEntry) -> dict[str, float]:
    """Those of the whole job; NaN: unknown."""
    return {**vars(StepMetrics.of(entry)), "global_batch_size": job.global_batch_size}


def rank_figures(entry: RoundEntry, scores: RankScores) -> dict[str, Sequence[float]]:
    """Those of each rank, by rank; empty, or NaN: unknown."""
    return {
        "batch_size": entry.batch_sizes,
        "busy_seconds": entry.busy_seconds,
        "input_seconds": entry.input_seconds,
        "cpu_load": entry.cpu_load,
        "throttled_share": entry.throttled_share,
        "page_faults": entry.page_faults,
        "against_others": scores.against_others.tolist(),
        "against_own_best": scores.against_own_best.tolist(),
    }
