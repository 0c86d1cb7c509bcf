"""What a step is expected to take with a plan, given what is not known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.plan import Plan
from hvd_dbs.balancing.posterior_curves import PosteriorCurves
from hvd_dbs.balancing.priors import PRIORS

_POINTS = 16
_KEEPS = 0.4
"""E[max(Z, 0)] of a standard normal Z: what is gained by keeping the better of two."""
_SIZES_SD = 0.25


@dataclass(frozen=True)
class Outlook:
    """Log seconds of a step: with the plan as it is, and once what it shows has been used."""

    now: float
    later: float


def outlook(curves: PosteriorCurves, plan: Plan, current: Plan) -> Outlook:
    """Expected log of the longest time of all ranks, with a plan instead of the current one."""
    samples = plan.samples
    mean, sd = np.log(curves.seconds(samples)), curves.deviations(samples)
    known = np.minimum(sd, curves.deviations(current.samples))
    new = np.sqrt(sd**2 - known**2)
    chance = curves.periods.chance(PRIORS.reaction)
    further = curves.periods.further()
    now = expected_longest(mean, sd, chance, further)
    if not new.any():
        return Outlook(now, now)
    return Outlook(now, expected_longest(mean - _KEEPS * new, known, chance, further))


def expected_longest(
    mean: NDArray[np.float64],
    sd: NDArray[np.float64],
    chance: NDArray[np.float64],
    further: NDArray[np.float64],
) -> float:
    """E[max_i x_i] of independent x_i ~ N(mean, sd^2), each larger by `further` with a chance."""
    sd = np.maximum(sd, 1e-6)
    least, most = float(np.max(mean - 3 * sd)), float(np.max(mean + 3.5 * sd))
    q = np.linspace(least, most, _POINTS)
    slow_sd = np.hypot(sd, _SIZES_SD * further)
    at_risk = chance * further > 0
    if at_risk.any():
        end = float(np.max(np.where(at_risk, mean + further + 2.5 * slow_sd, most)))
        if end > most:
            q = np.concatenate([q, np.linspace(most, end, _POINTS)[1:]])
    over = _beyond((q[:, np.newaxis] - mean) / sd)
    if at_risk.any():
        slow = _beyond((q[:, np.newaxis] - mean - further) / slow_sd)
        over = over + chance * (slow - over)
    longest = np.exp(np.sum(np.log1p(-np.minimum(over, 1 - 1e-9)), axis=1))
    beyond = 1 - longest
    return float(q[0] + np.sum(np.diff(q) * (beyond[1:] + beyond[:-1]) / 2))


def _beyond(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chance that a standard normal is larger, to about 1 %."""
    tail = 0.5 * np.exp(-(0.717 + 0.416 * np.abs(x)) * np.abs(x))
    return np.where(x < 0, 1 - tail, tail)
