"""What a step is expected to take with a plan, given what is not known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.plan import Plan
from hvd_dbs.balancing.posterior_curves import PosteriorCurves
from hvd_dbs.balancing.priors import PRIORS

_LEAST_SD = 1e-6
_QUIET = (1 - np.cos(np.linspace(0, np.pi, 16))) / 2
_SLOW = np.linspace(0, 1, 9)[1:]
"""Where distribution functions are looked at: up to the longest time without further slow periods,
closer at both ends, and from there to the longest one of a rank that has become slow."""
BETTER_OF_TWO = 1 / np.sqrt(2 * np.pi)
"""E[max(Z, 0)] of a standard normal Z: what is gained by keeping the better of two."""
_MOST_RANKS, _REST = 64, 64
"""Of more ranks, the latest ones are looked at, and a sample of the others; both can be halved."""


def outlooks(
    curves: PosteriorCurves, chance: NDArray[np.float64], current: Plan, plans: Sequence[Plan]
) -> tuple[float, NDArray[np.float64]]:
    """Expected log of the longest time of all ranks, with the plan in force and with others.

    With others that is once each rank has kept the better of what it had and what they show.

    Args:
        curves: What is known.
        chance: Of each rank being slow (`note_onsets`), shape `[size]`.
        current: The plan in force.
        plans: Those in question.

    Returns:
        With the plan in force; with the others, shape `[plans]`.
    """
    means = np.log(np.stack([curves.seconds(plan.samples) for plan in (current, *plans)]))
    sd_now = curves.deviations(current.samples)
    further = curves.further
    ranks, stands_for = _latest(np.max(means, axis=0) + 3 * sd_now, chance, further)
    means, sd_now = means[:, ranks], sd_now[ranks]
    sd = np.stack([curves.deviations(plan.samples, ranks) for plan in plans])
    # The rest of what is unsure is unsure with any plan.
    common = np.minimum(sd, sd_now)
    # A few steps show that much of what is new.
    new = sd**2 - common**2
    new = new / np.sqrt(new + curves.noise[ranks] ** 2 / PRIORS.reaction + _LEAST_SD**2)
    means[1:] -= BETTER_OF_TWO * new
    sds, risk = np.vstack([sd_now, common]), (chance[ranks], further[ranks], stands_for)
    now, *later = expected_longest(means, sds, *risk)
    return float(now), np.asarray(later)


def longest(
    mean: NDArray[np.float64],
    sd: NDArray[np.float64],
    chance: NDArray[np.float64],
    further: NDArray[np.float64],
) -> NDArray[np.float64]:
    """`expected_longest` of thousands of ranks, of which a part is looked at.

    Args:
        mean: Shape `[cases, size]`; the others `[size]`.
        sd: Deviations.
        chance: Of being slow.
        further: By how much larger the mean is then.

    Returns:
        Shape `[cases]`.
    """
    latest = np.max(mean, axis=0) + 3 * sd
    ranks, stands_for = _latest(latest, chance, further)
    return expected_longest(mean[:, ranks], sd[ranks], chance[ranks], further[ranks], stands_for)


def _latest(
    log_seconds: NDArray[np.float64], chance: NDArray[np.float64], further: NDArray[np.float64]
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
    if_slow = log_seconds + np.where(chance > 0, further, 0.0)
    order = others[np.argpartition(-if_slow[others], half)]
    rest = order[half :: -(-(size - _MOST_RANKS) // _REST)]
    return np.concatenate([latest, order[:half], rest]), (size - _MOST_RANKS) / rest.size


def expected_longest(
    mean: NDArray[np.float64],
    sd: NDArray[np.float64],
    chance: NDArray[np.float64],
    further: NDArray[np.float64],
    stands_for: float = 1.0,
) -> NDArray[np.float64]:
    """E[max_i x_i] of independent x_i ~ N(mean, sd^2), each larger by `further` with a chance.

    It is the integral of one minus the product of the distribution functions.

    Args:
        mean: Shape `[..., ranks]`; those that follow likewise, or `[ranks]`.
        sd: Deviations.
        chance: Of being slow.
        further: By how much larger the mean is then.
        stands_for: Ranks that each one after the first 64 stands for.

    Returns:
        Shape `[...]`.

    Example:
        >>> none, one = np.zeros(2), np.ones(2)
        >>> round(float(expected_longest(none, one, none, none)), 2)  # 1 / sqrt(pi)
        0.56
    """
    sd, slow_sd = np.maximum(sd, _LEAST_SD), np.hypot(sd, PRIORS.slow_sd * further)
    least = np.max(mean - 3 * sd, axis=-1, keepdims=True)
    most = np.max(mean + 3.5 * sd, axis=-1, keepdims=True)
    q = least + (most - least) * _QUIET
    at_risk = chance * further > 0
    if at_risk.any():
        end = np.where(at_risk, mean + further + 2.5 * slow_sd, most)
        last = np.maximum(np.max(end, axis=-1, keepdims=True), most)
        q = np.concatenate([q, most + (last - most) * _SLOW], axis=-1)
    off = q[..., np.newaxis] - mean[..., np.newaxis, :]
    over = _beyond(off / sd[..., np.newaxis, :])
    if at_risk.any():
        off -= further
        off /= slow_sd[..., np.newaxis, :]
        slow = _beyond(off)
        slow -= over
        slow *= chance
        over += slow
    within = np.subtract(1, over, out=over)
    rest = np.prod(within[..., _MOST_RANKS:], axis=-1) ** stands_for
    beyond = 1 - np.prod(within[..., :_MOST_RANKS], axis=-1) * rest
    areas = np.diff(q, axis=-1) * (beyond[..., 1:] + beyond[..., :-1]) / 2
    return np.asarray(q[..., 0] + np.sum(areas, axis=-1))


def _beyond(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chance that a standard normal is larger, to about 1 % (Lin, 1989)."""
    away = np.abs(x)  # From here on in place: new memory takes as long as the arithmetic.
    tail = away * -0.416
    tail -= 0.717
    tail *= away
    np.exp(tail, out=tail)
    tail *= 0.5
    tail -= 0.5
    np.copysign(tail, x, out=tail)
    return np.subtract(0.5, tail, out=tail)
