"""The split with the shortest step, for ranks as they were or would be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Bounds, Plan
from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.equal_finish import equal_finish
from hvd_dbs.cli.report.job_model import JobModel, mean_of

_FOLLOWED = 0.05
"""Paces that differ by less, in parts, have the same best plan."""

_MOST_PLANS = 200
"""Best plans that are found for the paces of a job's rounds; with more, one for their means."""


def spread_is_known(model: JobModel) -> bool:
    """Whether every rank has had batch sizes that show how its time grows with them."""
    return all(curve.shows_growth for curve in model.curves)


def lines_of(
    model: JobModel, elasticities: NDArray[np.float64] | None, scale: NDArray[np.float64]
) -> AffineCurves:
    """Each rank's time by its batch size, at its mean pace.

    Args:
        model: Of the job.
        elasticities: Of ranks that had one batch size only, shape `[size]`, others left out; None:
            what is assumed of them.
        scale: By what to multiply the ranks' times, shape `[rounds, size]`.
    """
    pace = mean_of(model.paces * scale, model.num_steps)
    rows = []
    for rank, curve in enumerate(model.curves):
        part, level = curve.elasticity, pace[rank] * curve.seconds
        if not curve.shows_growth:
            part = part if elasticities is None else float(elasticities[rank])
            level *= float(np.mean(curve.factors))  # What was measured there, without doubt.
        rows.append((level * (1 - part), level * part / curve.samples))
    fixed, per_sample = np.array(rows).T
    return AffineCurves(fixed, per_sample)


def best_plan(model: JobModel, lines: AffineCurves, ranks: NDArray[np.intp]) -> NDArray[np.float64]:
    """The split with the shortest step among some ranks, shape `[len(ranks)]`."""
    bounds = Bounds.of(len(ranks), minimum=1)
    even = Plan.proportional(model.global_batch_size, [1.0] * len(ranks), bounds)
    return equal_finish(Problem(model.global_batch_size, bounds, even), lines.take(ranks)).samples


def seconds_with(
    model: JobModel,
    plan: NDArray[np.float64],
    lines: AffineCurves,
    scale: NDArray[np.float64],
    ranks: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Busy seconds of some ranks with a plan, at the paces of each round, `[rounds, ranks]`."""
    paces = (model.paces * scale)[:, ranks]
    return np.asarray(lines.take(ranks).seconds(plan) * paces / mean_of(paces, model.num_steps))


def best_seconds(
    model: JobModel,
    elasticities: NDArray[np.float64] | None,
    scale: NDArray[np.float64],
    ranks: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Busy seconds of some ranks with the best plan for their paces, `[rounds, ranks]`.

    The plan follows the paces from round to round, as strategies do; one that is new in each
    round would follow noise, so paces that differ little share a plan.

    Args:
        model: Of the job.
        elasticities: See `lines_of`.
        scale: By what to multiply the ranks' times, shape `[rounds, size]`.
        ranks: Those that take part.
    """
    lines = lines_of(model, elasticities, scale)
    paces = (model.paces * scale)[:, ranks]
    relative = paces / mean_of(paces, model.num_steps)
    near = np.round(np.log(relative) / _FOLLOWED)
    rows, which = np.unique(near, axis=0, return_inverse=True)
    if len(rows) > _MOST_PLANS:
        rows, which = np.zeros_like(rows[:1]), np.zeros_like(which)
    seconds = np.empty_like(relative)
    for number, row in enumerate(rows):
        pace = np.ones(model.size)
        pace[ranks] = np.exp(_FOLLOWED * row)
        paced = AffineCurves(lines.fixed * pace, lines.per_sample * pace)
        chosen = which.ravel() == number
        plan = best_plan(model, paced, ranks)
        seconds[chosen] = lines.take(ranks).seconds(plan) * relative[chosen]
    return seconds


def best_steps(model: JobModel) -> NDArray[np.float64]:
    """The shortest step that the ranks' paces allow, shape `[rounds]`."""
    everybody, ones = np.arange(model.size), np.ones_like(model.seconds)
    best = model.steps(best_seconds(model, None, ones, everybody))
    return np.asarray(np.minimum(best, model.step_seconds))
