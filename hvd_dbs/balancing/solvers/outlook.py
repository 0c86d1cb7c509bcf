"""What a step is expected to take with a plan, given what is not known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.plan import Plan
from hvd_dbs.balancing.posterior_curves import PosteriorCurves
from hvd_dbs.balancing.priors import PRIORS

_POINTS, _LEAST_SD = 16, 1e-6
_BETTER_OF_TWO = 1 / np.sqrt(2 * np.pi)
"""E[max(Z, 0)] of a standard normal Z: what is gained by keeping the better of two."""
_MOST_RANKS, _REST = 128, 128
"""Of more ranks, the latest ones are looked at, and a sample of the others; both are even."""


def outlooks(curves: PosteriorCurves, current: Plan, plan: Plan) -> tuple[float, float]:
    """Expected log of the longest time of all ranks, with the plan in force and with another.

    That is once each rank has kept the better of what it had and what a few steps show.

    Args:
        curves: What is known.
        current: The plan in force.
        plan: The plan in question.
    """
    mean_now, mean = (np.log(curves.seconds(one.samples)) for one in (current, plan))
    sd_now = curves.deviations(current.samples)
    chance, further = curves.periods.chance, curves.periods.further
    at_risk = np.where(chance > 0, further, 0.0)
    ranks, stands_for = _latest(np.maximum(mean_now, mean) + 3 * sd_now, at_risk)
    risk = chance[ranks], further[ranks], stands_for
    mean_now, mean, sd_now = mean_now[ranks], mean[ranks], sd_now[ranks]
    sd = curves.deviations(plan.samples, ranks)
    now = expected_longest(mean_now, sd_now, *risk)
    # Staying shows what its slowest rank takes.
    better = _BETTER_OF_TWO * float(sd_now[np.argmax(mean_now)])
    # The rest of what is unsure is unsure with any plan.
    common = np.minimum(sd, sd_now)
    # A few steps show that much of what is new.
    new = sd**2 - common**2
    new = new / np.sqrt(new + curves.noise[ranks] ** 2 / PRIORS.reaction + _LEAST_SD**2)
    later = expected_longest(mean - _BETTER_OF_TWO * new, common, *risk)
    return now - better, later


def longest(
    mean: NDArray[np.float64],
    sd: NDArray[np.float64],
    chance: NDArray[np.float64],
    further: NDArray[np.float64],
) -> float:
    """`expected_longest` of thousands of ranks, of which a part is looked at; shapes `[size]`."""
    ranks, stands_for = _latest(mean + 3 * sd, np.where(chance > 0, further, 0.0))
    return expected_longest(mean[ranks], sd[ranks], chance[ranks], further[ranks], stands_for)


def _latest(
    log_seconds: NDArray[np.float64], at_risk: NDArray[np.float64]
) -> tuple[NDArray[np.intp], float]:
    """The ranks to look at, and for how many each of them stands after the first `_MOST_RANKS`.

    Half of the first ones are late as it is, half would be if they became slow.
    """
    size = log_seconds.size
    if size <= _MOST_RANKS + _REST:
        return np.arange(size), 1.0
    half = _MOST_RANKS // 2
    order = np.argpartition(-log_seconds, half)
    latest, others = order[:half], order[half:]
    order = others[np.argpartition(-(log_seconds + at_risk)[others], half)]
    rest = order[half :: -(-(size - _MOST_RANKS) // _REST)]
    return np.concatenate([latest, order[:half], rest]), (size - _MOST_RANKS) / rest.size


def expected_longest(
    mean: NDArray[np.float64],
    sd: NDArray[np.float64],
    chance: NDArray[np.float64],
    further: NDArray[np.float64],
    stands_for: float = 1.0,
) -> float:
    """E[max_i x_i] of independent x_i ~ N(mean, sd^2), each larger by `further` with a chance.

    It is the integral of one minus the product of the distribution functions.

    Args:
        mean: Shape `[ranks]`, likewise those that follow.
        sd: Deviations.
        chance: Of being slow.
        further: By how much larger the mean is then.
        stands_for: Ranks that each one after the first 128 stands for.

    Example:
        >>> none, one = np.zeros(2), np.ones(2)
        >>> round(expected_longest(none, one, none, none), 2)  # 1 / sqrt(pi)
        0.56
    """
    sd, slow_sd = np.maximum(sd, _LEAST_SD), np.hypot(sd, PRIORS.slow_sd * further)
    top, end = mean + 3.5 * sd, mean + further + 2.5 * slow_sd
    at_risk = chance * further > 0
    least, most = float(np.max(mean - 3 * sd)), float(np.max(top))
    q = least + (most - least) * (1 - np.cos(np.linspace(0, np.pi, _POINTS))) / 2
    last = float(np.max(np.where(at_risk, end, most)))
    if last > most:
        q = np.concatenate([q, np.linspace(most, last, _POINTS)[1:]])
    over = _beyond((q[:, np.newaxis] - mean) / sd)
    if at_risk.any():
        slow = _beyond((q[:, np.newaxis] - mean - further) / np.maximum(slow_sd, _LEAST_SD))
        over = over + chance * (slow - over)
    within = 1 - over
    rest = np.prod(within[:, _MOST_RANKS:], axis=1) ** stands_for
    beyond = 1 - np.prod(within[:, :_MOST_RANKS], axis=1) * rest
    return float(q[0] + np.sum(np.diff(q) * (beyond[1:] + beyond[:-1]) / 2))


def _beyond(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chance that a standard normal is larger, to about 1 % (Lin, 1989)."""
    away = np.abs(x)
    tail = 0.5 * np.exp(-(0.717 + 0.416 * away) * away)
    return np.where(x < 0, 1 - tail, tail)
