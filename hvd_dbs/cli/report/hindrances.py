"""Why a rank is slow, as far as its host shows it."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.cli.report.causes import Cause
from hvd_dbs.cli.report.job_model import JobModel
from hvd_dbs.job.step_parts import percent

_MUCH = 0.1
"""Part of the time in which a container's quota is used up that is worth a word."""

_MORE_LOAD = 0.2
"""Use of processors by others beyond that of other ranks, or of calm rounds."""

_MORE_FAULTS, _MANY_FAULTS = 10.0, 1000.0
"""Times as many page faults as the median rank, and this many a step: each takes a microsecond."""


def hindrances(model: JobModel, cause: Cause) -> str:
    """Sentences on what hindered the ranks of a cause, each after a blank; empty: nothing known."""
    ranks = list(cause.ranks)
    slow = model.calm[:, ranks].min(axis=1) < 1 / 1.1
    in_slow = slow if cause.kind == "slow periods" and slow.any() else np.ones(len(slow), bool)
    found = []
    throttled = _of(model, "throttled_share")
    if (share := _most(throttled[in_slow][:, ranks])) >= _MUCH:
        found.append(
            f"Its container was out of processor time (its quota) {percent(share)} of the time"
        )
    load = _of(model, "cpu_load")
    there = _most(load[in_slow][:, ranks])
    calm = _most(load[~slow][:, ranks]) if cause.kind == "slow periods" else _usual(load, ranks)
    if there - calm >= _MORE_LOAD:
        when = "then, else" if cause.kind == "slow periods" else "and of other ranks'"
        found.append(f"Others used {percent(there)} of its processors {when} {percent(calm)}")
    faults = _of(model, "page_faults")
    number, usual = _most(faults[in_slow][:, ranks]), _usual(faults, ranks)
    if number >= _MANY_FAULTS and number >= _MORE_FAULTS * usual:
        found.append(f"It has {number:.0f} page faults a step, others {usual:.0f}")
    return "".join(f" {one}." for one in found)


def _of(model: JobModel, field: str) -> NDArray[np.float64]:
    unknown = (np.nan,) * model.size
    return np.array([getattr(entry, field) or unknown for entry in model.entries])


def _most(rows: NDArray[np.float64]) -> float:
    """Of the ranks' means the largest; NaN where nothing is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(np.nanmax(np.nanmean(rows, axis=0))) if rows.size else float("nan")


def _usual(rows: NDArray[np.float64], ranks: list[int]) -> float:
    """Of the other ranks' means the median; NaN where nothing is known."""
    others = np.delete(rows, ranks, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(np.nanmedian(np.nanmean(others, axis=0))) if others.size else float("nan")
