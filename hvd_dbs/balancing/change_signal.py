"""Whether the last steps of a rank signal a change: they are far from what is expected of it.

Between two rounds the ranks of a job exchange a change signal with each step. If a rank sets it,
a round begins at once, so that decisions can be rare while speeds last and still follow changes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import ELASTICITY
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.priors import PRIORS

STEPS_WATCHED = 3
"""Ranks compare so many of their last steps."""

_CHANGED_STEPS = 2
"""So many far steps on the same side are a change, or one more where steps are often held up; a
single one is a pause."""

_QUARTILE_SIGMAS = 0.674
"""Deviations from the median to a quartile of normal numbers."""

_SPREAD_STEPS = PRIORS.most_steps
"""Steps from which the deviation of a step is known: those between two decisions in peace."""


@dataclass(frozen=True)
class ExpectedSteps:
    """What a step of each rank is expected to take. All fields have shape `[ranks]`.

    Attributes:
        num_samples: Samples a step, NaN where nothing is known.
        seconds: Seconds a step.
        spread: Relative deviation of a single step.
        pause_rate: Part of steps that something else holds up.

    Example:
        >>> expected = ExpectedSteps(*np.array([[4.0], [1.0], [0.01], [0.001]]))
        >>> samples = np.full((3, 1), 4.0)
        >>> expected.changes(np.array([[1.0], [2.0], [2.1]]), samples, job_size=4).tolist()
        [[False], [True], [True]]
        >>> expected.changes(np.array([[1.0], [9.0], [1.0]]), samples, job_size=4).any().item()
        False
    """

    num_samples: NDArray[np.float64]
    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]
    pause_rate: NDArray[np.float64]

    @classmethod
    def by_last_round(cls, seen: Measurement) -> ExpectedSteps:
        """What ranks are expected to take by one round alone."""
        median = np.where(seen.median_seconds > 0, seen.median_seconds, seen.busy_seconds)
        median = np.where(seen.num_steps > 0, median, np.nan)  # A first step is not the pace.
        spread = (median - seen.quartile_seconds) / median / _QUARTILE_SIGMAS
        spread = np.fmax(spread, PRIORS.noise_sd)
        return cls(seen.batch_sizes, median, spread, np.full(median.shape, PRIORS.pause_rate))

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
            # By how much a step is far off: that is a slow period, and no chance.
            limit = np.maximum(PRIORS.slow, _sigmas(job_size) * self.spread)
            # The elasticity is known no better than the fixed part.
            limit = limit + PRIORS.fixed_part_sd * np.abs(apart)
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
        by_pauses = pairs * self.pause_rate**_CHANGED_STEPS
        slow &= slow.sum(axis=0) >= _CHANGED_STEPS + (by_pauses > PRIORS.false_signals)
        fast &= fast.sum(axis=0) >= _CHANGED_STEPS
        return np.asarray(slow | fast)


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
