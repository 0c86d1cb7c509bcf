"""Whether the last steps of a rank signal a change: they are far from what its last round measured.

Between two rounds the ranks of a job exchange a change signal with each step. If a rank sets it,
a round begins at once, so that decisions can be rare while speeds last and still follow changes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import ELASTICITY
from hvd_dbs.balancing.order_statistics import MEDIAN, QUARTILE, lower_value, value_at
from hvd_dbs.balancing.priors import PRIORS

STEPS_WATCHED = 3
"""Ranks compare so many of their last steps."""

_CHANGED_STEPS = 2
"""So many far steps on the same side are a change, or one more where steps are often held up; a
single one is a pause."""

_SPREAD_STEPS = PRIORS.most_steps
"""Steps from which the deviation of a step is known: those between two decisions in peace."""

_FAR_STEPS = 0.5 / PRIORS.pause_rate
"""Steps that the prior of being held up counts for: half a pause, as of `Posterior`."""


@dataclass(frozen=True)
class ExpectedSteps:
    """What a step of each rank takes by its last rounds.

    Attributes:
        num_samples: Samples a step, NaN where nothing is known, shape `[ranks]`.
        seconds: Seconds a step, shape `[ranks]`.
        spread: Relative deviation of a single step, shape `[ranks]`.
        far: Part of steps that alone took longer than that explains, shape `[ranks]`.

    Example:
        >>> nothing = ExpectedSteps.unknown(1)
        >>> expected = nothing.after(np.array([4.0]), np.array([1.0]), np.ones((5, 1)), job_size=4)
        >>> samples = np.full((3, 1), 4.0)
        >>> expected.changes(np.array([[1.0], [2.0], [2.1]]), samples, job_size=4).tolist()
        [[False], [True], [True]]
        >>> expected.changes(np.array([[1.0], [9.0], [1.0]]), samples, job_size=4).any().item()
        False
    """

    num_samples: NDArray[np.float64]
    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]
    far: NDArray[np.float64]

    @classmethod
    def unknown(cls, num_ranks: int) -> ExpectedSteps:
        """Before the first round: nothing is a change."""
        none = np.full(num_ranks, np.nan)
        spread, far = (np.full(num_ranks, first) for first in (PRIORS.noise_sd, PRIORS.pause_rate))
        return cls(none, none, spread, far)

    def after(
        self,
        num_samples: NDArray[np.float64],
        seconds: NDArray[np.float64],
        step_seconds: NDArray[np.float64],
        job_size: int,
    ) -> ExpectedSteps:
        """What is expected once a round is over.

        Args:
            num_samples: Samples a step, shape `[ranks]`.
            seconds: Of a step in the round, not above 0 where unknown, shape `[ranks]`.
            step_seconds: Its steps, NaN for those that do not count, shape `[steps, ranks]`.
            job_size: Ranks of the job.
        """
        known = seconds > 0
        spread, far, expected = self.spread.copy(), self.far.copy(), seconds.copy()
        counts = np.isfinite(step_seconds).sum(axis=0)
        seen = known & (counts > 0)
        if seen.any():
            steps = step_seconds[:, seen]
            low, high = (limit[seen] for limit in self.band(num_samples, job_size))
            median, shorter = (lower_value(steps, parts) for parts in (MEDIAN, QUARTILE))
            # Pauses are no reason to expect more, also where most steps of a few are pauses.
            is_paused = (median > high) & (shorter <= high)
            expected[seen] = np.where(is_paused, (low + high) / 2, median)
        enough = known & (counts >= STEPS_WATCHED)
        if enough.any():
            steps, counts = step_seconds[:, enough], counts[enough]
            low, high = (value_at(steps, part * (counts - 1)) for part in (0.25, 0.75))
            seen = (high - low) / 1.35 / expected[enough]
            spread[enough] += counts / (counts + _SPREAD_STEPS) * (seen - spread[enough])
            is_far = steps > expected[enough] * (1 + _limit(spread[enough], job_size))
            # Slow steps one after the other are a change.
            alone = is_far[1:-1] & ~is_far[:-2] & ~is_far[2:]
            seen = alone.sum(axis=0) / (counts - 2)
            far[enough] += (counts - 2) / (counts - 2 + _FAR_STEPS) * (seen - far[enough])
        return replace(
            self,
            num_samples=np.where(known, num_samples, self.num_samples),
            seconds=np.where(known, expected, self.seconds),
            spread=spread,
            far=far,
        )

    def band(
        self, num_samples: NDArray[np.float64], job_size: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The seconds between which a step is not far off; NaN where nothing is known.

        Args:
            num_samples: Samples of the step, shape `[..., ranks]`.
            job_size: Ranks that may be far off.

        Returns:
            The least and the most, same shape.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            apart = np.log(num_samples / self.num_samples)
            expected = self.seconds * np.exp(ELASTICITY * apart)
            # The elasticity is known no better than the fixed part.
            limit = _limit(self.spread, job_size) + PRIORS.fixed_part_sd * np.abs(apart)
            return expected * (1.0 - limit), expected * (1.0 + limit)

    def changes(
        self,
        step_seconds: NDArray[np.float64],
        num_samples: NDArray[np.float64],
        job_size: int,
    ) -> NDArray[np.bool_]:
        """Which of the last steps signal a change.

        Args:
            step_seconds: The last steps, NaN for those that do not count, `[steps, ranks]`.
            num_samples: Samples of each rank in each of them, same shape.
            job_size: Ranks that may signal one.

        Returns:
            The far steps of the ranks that have changed, same shape.
        """
        low, high = self.band(num_samples, job_size)
        slow, fast = step_seconds > high, step_seconds < low
        pairs = math.comb(STEPS_WATCHED, _CHANGED_STEPS) * job_size
        by_pauses = pairs * self.far**_CHANGED_STEPS
        slow &= slow.sum(axis=0) >= _CHANGED_STEPS + (by_pauses > PRIORS.false_signals)
        fast &= fast.sum(axis=0) >= _CHANGED_STEPS
        return np.asarray(slow | fast)


def _limit(spread: NDArray[np.float64], job_size: int) -> NDArray[np.float64]:
    """By how much a step is far off: that is a slow period, and no chance."""
    return np.maximum(PRIORS.slow, _sigmas(job_size) * spread)


@functools.cache
def _sigmas(job_size: int) -> float:
    """Deviations that one rank or another exceeds by chance in `false_signals` of the steps.

    What is expected is of a few steps too, and wrong in the next step by as much, so the chance is
    that of one far step, not of two. A quantile of Student's distribution, as deviations are known
    from `_SPREAD_STEPS` steps.

    References:
        Wallace, "Bounds on normal approximations to Student's and the chi-square distributions",
        1959.
    """
    normal = NormalDist().inv_cdf(1 - PRIORS.false_signals / job_size)
    normal *= (8 * _SPREAD_STEPS + 3) / (8 * _SPREAD_STEPS + 1)
    return math.sqrt(_SPREAD_STEPS * math.expm1(normal**2 / _SPREAD_STEPS))
