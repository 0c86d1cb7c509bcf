"""A job as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Plan
from hvd_dbs.cli.report.best_split import best_steps
from hvd_dbs.cli.report.job_model import JobModel
from hvd_dbs.cli.report.rank_figures import median_of_known, start_time
from hvd_dbs.cli.report.text import title_of
from hvd_dbs.cli.report.verdict import Verdict
from hvd_dbs.job.journal import JournalPart

_MOST_COLUMNS = 300
"""Rounds that are drawn; of more, each column has the medians of several."""

_MOST_DECISIONS = 500

_PLACE = "__JOB__"
"""Where the template has the job's data."""


def write_page(part: JournalPart, verdict: Verdict | str, name: str, path: Path) -> None:
    """Writes the page.

    Args:
        part: At least one round.
        verdict: On it, or why there is none.
        name: Of the journal.
        path: File to write.

    Raises:
        OSError: If it cannot be written.
    """
    template = resources.files("hvd_dbs.cli.report").joinpath("page.html").read_text("utf-8")
    data = json.dumps(page_data(part, verdict, name), allow_nan=False, separators=(",", ":"))
    # Nothing in a reason or a host's name may end the script that has the data.
    path.write_text(template.replace(_PLACE, data.replace("<", "\\u003c")), encoding="utf-8")


def page_data(part: JournalPart, verdict: Verdict | str, name: str) -> dict[str, Any]:
    """What the page draws: rows by column of time, and by rank within them; null: unknown."""
    groups = np.array_split(np.arange(len(part.rounds)), min(len(part.rounds), _MOST_COLUMNS))
    start = start_time(part)
    ends = [part.rounds[group[-1]].time - start for group in groups]
    busy = np.array([entry.busy_seconds for entry in part.rounds])
    unknown = (np.nan,) * len(part.job.hosts)
    waits = np.array([entry.input_seconds or unknown for entry in part.rounds])
    slowness, best = _modelled(part, busy)

    def columns(rows: NDArray[np.float64], scale: float = 1.0) -> list[Any]:
        return [_plain((scale * median_of_known(rows[group])).tolist()) for group in groups]

    return {
        "name": name,
        "title": title_of(part),
        "verdict": verdict.text.split("\n") if isinstance(verdict, Verdict) else [verdict],
        "hosts": part.job.hosts,
        "ends": _plain(ends),
        "where": [
            f"epoch {part.rounds[group[-1]].epoch}, step {part.rounds[group[-1]].step}"
            for group in groups
        ],
        "step": columns(np.array([entry.step_seconds for entry in part.rounds]), 1000),
        "best": columns(best, 1000),
        "batch": columns(np.array([entry.batch_sizes for entry in part.rounds], float)),
        "busy": columns(busy, 1000),
        "input": columns(waits, 1000),
        "slowness": columns(slowness),
        "changes": [
            {
                "at": round(entry.time - start, 3),
                "where": f"epoch {entry.epoch}, step {entry.step}",
                "plan": f"{Plan(entry.plan_before)} → {Plan(entry.plan)}",
                "reason": entry.reason,
            }
            for entry in part.rounds
            if entry.changed
        ][-_MOST_DECISIONS:],
    }


def _modelled(
    part: JournalPart, busy: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How slow each rank was in each round, `[rounds, size]`, and the best step, `[rounds]`.

    Over the median rank at the same batch size; where no curve is known, over the median time.
    """
    best = np.full(len(busy), np.nan)
    try:
        model = JobModel.of(part, newest=False)
    except ValueError:
        return busy / median_of_known(busy.T)[:, np.newaxis], best
    slowness = np.full(busy.shape, np.nan)
    slowness[model.numbers] = model.slowness * model.paces / model.calm_paces
    best[model.numbers] = best_steps(model)
    return np.where(np.isfinite(busy), slowness, np.nan), best


def _plain(value: Any) -> Any:
    """JSON data without NaN, of no more digits than are seen."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return float(f"{value:.4g}") if math.isfinite(value) else None
