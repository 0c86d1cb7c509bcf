"""Whether the last steps of a rank signal a change: they are far from what its last round measured.

Between two rounds the ranks of a job exchange a change signal with each step. If a rank sets it,
a round begins at once, so that decisions can be rare while speeds last and still follow changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import ELASTICITY

STEPS_WATCHED = 3
"""Ranks compare so many of their last steps."""

_MOST_RANKS = 64
"""Among more ranks some rank changes at any time, and rounds of a few steps show little."""

_HEEDED_PART = 8
"""Ranks compare steps once this part of the way to the next round is over: short bursts must not
cause costly decisions too often."""

_LEAST_CHANGE, _SIGMAS = 0.15, 4.0
"""A step is far off by that much, and by so many deviations of a step."""

_CHANGED_STEPS = 2
"""So many far steps on the same side are a change; a single one is a pause."""

_FIRST_SPREAD, _SPREAD_STEPS = 0.03, 20.0
"""The deviation of a step before anything is known of it; what is known counts for so many."""

_UNSURE = 0.3
"""How unsure `ELASTICITY` is."""


def watched_from(num_ranks: int, steps_to_next: int) -> int | None:
    """How many steps after the last round began ranks first compare steps; None: never.

    Args:
        num_ranks: Ranks of the job.
        steps_to_next: Steps from then to the round that is due without a change.
    """
    return -(-steps_to_next // _HEEDED_PART) if num_ranks <= _MOST_RANKS else None


@dataclass(frozen=True)
class ExpectedSteps:
    """What a step of each rank takes by its last rounds.

    Attributes:
        num_samples: Samples a step, NaN where nothing is known, shape `[ranks]`.
        seconds: Seconds a step, shape `[ranks]`.
        spread: Relative deviation of a single step, shape `[ranks]`.

    Example:
        >>> nothing = ExpectedSteps.unknown(1)
        >>> expected = nothing.after(np.array([4.0]), np.array([1.0]), np.ones((5, 1)))
        >>> expected.changes(np.array([[1.0], [2.0], [2.1]]), np.full((3, 1), 4.0)).tolist()
        [[False], [True], [True]]
        >>> expected.changes(np.array([[1.0], [9.0], [1.0]]), np.full((3, 1), 4.0)).any().item()
        False
    """

    num_samples: NDArray[np.float64]
    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]

    @classmethod
    def unknown(cls, num_ranks: int) -> ExpectedSteps:
        """Before the first round: nothing is a change."""
        none = np.full(num_ranks, np.nan)
        return cls(none, none, np.full(num_ranks, _FIRST_SPREAD))

    def after(
        self,
        num_samples: NDArray[np.float64],
        seconds: NDArray[np.float64],
        step_seconds: NDArray[np.float64],
    ) -> ExpectedSteps:
        """What is expected once a round is over.

        Args:
            num_samples: Samples a step, shape `[ranks]`.
            seconds: Of a step in the round, not above 0 where unknown, shape `[ranks]`.
            step_seconds: Its steps, NaN for those that do not count, shape `[steps, ranks]`.
        """
        known = seconds > 0
        spread, counts = self.spread, np.isfinite(step_seconds).sum(axis=0)
        enough = known & (counts >= STEPS_WATCHED)
        if enough.any():
            low, high = np.nanpercentile(step_seconds[:, enough], [25, 75], axis=0)
            seen = (high - low) / 1.35 / seconds[enough]
            spread = spread.copy()
            spread[enough] += (
                counts[enough] / (counts[enough] + _SPREAD_STEPS) * (seen - spread[enough])
            )
        return ExpectedSteps(
            np.where(known, num_samples, self.num_samples),
            np.where(known, seconds, self.seconds),
            spread,
        )

    def band(
        self, num_samples: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The seconds between which a step is not far off; NaN where nothing is known.

        Args:
            num_samples: Samples of the step, shape `[..., ranks]`.

        Returns:
            The least and the most, same shape.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            apart = np.log(num_samples / self.num_samples)
            expected = self.seconds * np.exp(ELASTICITY * apart)
            limit = np.maximum(_LEAST_CHANGE, _SIGMAS * self.spread) + _UNSURE * np.abs(apart)
            return expected * (1.0 - limit), expected * (1.0 + limit)

    def changes(
        self, step_seconds: NDArray[np.float64], num_samples: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Which of the last steps signal a change.

        Args:
            step_seconds: The last steps, NaN for those that do not count, `[steps, ranks]`.
            num_samples: Samples of each rank in each of them, same shape.

        Returns:
            The far steps of the ranks that have changed, same shape.
        """
        low, high = self.band(num_samples)
        slow, fast = step_seconds > high, step_seconds < low
        slow &= slow.sum(axis=0) >= _CHANGED_STEPS
        fast &= fast.sum(axis=0) >= _CHANGED_STEPS
        return np.asarray(slow | fast)
