"""How much rounds of a rank differ, and steps within a round: both are learnt."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.order_statistics import MEDIAN, QUARTILE, below_mean
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.time_models.curve_prior import Rows
from hvd_dbs.balancing.time_models.time_model import ModelState

NOISE = PRIORS.noise_rounds * PRIORS.noise_sd**2, PRIORS.noise_rounds
ROUGHNESS = PRIORS.roughness_sd**2, 1.0
SPREAD = 0.0, 0.0
"""What each begins with: a sum, and how many rounds it counts for."""


def learn_variances(state: ModelState, ratio: Rows, noisy: Rows, parts: Mapping[str, Rows]) -> Rows:
    """A surprise scales both variances, and counts for each as much as its part of the surprise's.

    Args:
        state: Of `Posterior`; its "noise" and "roughness" are changed.
        ratio: Square of the surprise, less its trend, over its variance, shape `[rows]`.
        noisy: Chance that it was no more than that, same shape.
        parts: Part of the surprise's variance that is noise, and that is roughness, same shape.

    Returns:
        How many times as large as before the variance of the noise is, same shape.
    """
    before = _mean(state["noise"])
    for name, prior in (("noise", NOISE), ("roughness", ROUGHNESS)):
        shown = _mean(state[name]) * ratio
        state[name] = _after(state[name], prior, noisy * parts[name], shown)
    return np.asarray(_mean(state["noise"]) / before)


def begin_noise(state: ModelState, steps: Rows, excess: Rows, counts: NDArray[np.bool_]) -> None:
    """What the steps of a first round differ by counts as a round.

    Args:
        state: Of `Posterior`; its "noise" is changed.
        steps: Of the round, more than 1 where it counts, shape `[rows]`.
        excess: Log of their mean over their lower quartile, same shape.
        counts: Of which rows, same shape.
    """
    shown = excess[counts] / below_mean(steps[counts], QUARTILE)
    state["noise"][counts] += np.column_stack([shown**2, np.ones_like(shown)])


def pooled(total: Rows, count: Rows) -> Rows:
    """How many times as large noise is if ranks are expected to have the noise of all of them.

    Args:
        total: Of each rank's "noise", shape `[size]`.
        count: Likewise, same shape.

    Returns:
        Factors on variances, same shape.
    """
    own = np.where(count > NOISE[1], np.maximum(total - NOISE[0], 0.0), 0.0)
    seen = np.where(own > 0, count - NOISE[1], 0.0)
    # Deviations, not variances, since one rank may be much noisier than all others.
    deviation = NOISE[1] * PRIORS.noise_sd + float(np.sum(np.sqrt(own * seen)))
    expected = NOISE[1] * (deviation / (NOISE[1] + float(seen.sum()))) ** 2
    return np.asarray((expected + own) / (NOISE[0] + own))


def learn_spread(state: ModelState, steps: Rows, spread: Rows, pause: Rows) -> None:
    """The deviation of single steps, by how far apart median and lower quartile of a round are.

    Neither shows that a few steps are held up, as the noise between rounds does.

    Args:
        state: Of `Posterior`; its "spread" is changed.
        steps: Of the round, shape `[rows]`.
        spread: Log of their median over their lower quartile, NaN where unknown, same shape.
        pause: Chance that a step has paused, same shape.
    """
    apart = below_mean(steps, QUARTILE) - below_mean(steps, MEDIAN)
    is_known = np.isfinite(spread) & (spread >= 0) & (apart > 0)
    shown = np.where(is_known, spread, 0.0) / np.where(is_known, apart, 1.0)
    state["spread"] = _after(state["spread"], SPREAD, is_known * (1 - pause), shown)


def noise_of(state: ModelState, steps: Rows) -> Rows:
    """Variance that noise gives the log time of a round of so many steps, shape `[rows]`."""
    return _mean(state["noise"]) / steps


def within_rounds(state: ModelState) -> Rows:
    """The deviation of single steps within a round, shape `[rows]`; the noise counts as one."""
    total, count = state["spread"].T
    return np.asarray((np.sqrt(_mean(state["noise"])) + total) / (1 + count))


def _mean(sums: Rows) -> Rows:
    return np.asarray(sums[:, 0] / sums[:, 1])


def _after(sums: Rows, prior: tuple[float, float], weight: Rows, shown: Rows) -> Rows:
    """Sum and count after a round; what was seen fades, the prior does not."""
    keep = np.where(sums[:, 1] > PRIORS.memory_rounds, 1 - 1 / PRIORS.memory_rounds, 1.0)
    new = np.column_stack([weight * shown, weight])
    return np.asarray(prior + (sums - prior) * keep[:, np.newaxis] + new)
