"""Whether a job is faster without its slowest rank; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Bounds

_ROUNDS = 3
"""Rounds that have to show it."""

_LEAST_GAIN = 0.05
"""Less is not worth a rank."""


@dataclass(frozen=True)
class DispensableRank:
    """A rank that is slower at its fewest samples than the others would be with all.

    Attributes:
        rank: Which.
        num_samples: Its samples in a step: no plan gives it fewer.
        seconds: What it takes for them.
        seconds_without: What the slowest of the others would take at most, if they had its samples
            too, in proportion to theirs.
    """

    rank: int
    num_samples: int
    seconds: float
    seconds_without: float

    @classmethod
    def of(
        cls, batch_sizes: NDArray[np.float64], busy_seconds: NDArray[np.float64], bounds: Bounds
    ) -> DispensableRank | None:
        """The one of a round, if there is one.

        Args:
            batch_sizes: Samples of each rank in a step, shape `[size]`.
            busy_seconds: What each rank took for them, NaN where unknown, shape `[size]`.
            bounds: Of the plans.

        Example:
            >>> bounds = Bounds.of(3, minimum=1)
            >>> sizes, seconds = np.array([50.0, 49.0, 1.0]), np.array([0.1, 0.1, 0.9])
            >>> found = DispensableRank.of(sizes, seconds, bounds)
            >>> found.rank, found.seconds, round(found.seconds_without, 3)
            (2, 0.9, 0.101)
        """
        if len(batch_sizes) < 2 or not np.isfinite(busy_seconds).all():
            return None
        rank = int(np.argmax(busy_seconds))
        samples, others = float(batch_sizes[rank]), float(np.sum(batch_sizes) - batch_sizes[rank])
        unit = bounds.multiple_of
        least = -(-max(bounds.minimum[rank], 1) // unit) * unit
        room = [most for other, most in enumerate(bounds.maximum) if other != rank]
        fits = None in room or sum(most or 0 for most in room) >= others + samples
        if samples > least or not others or not fits:
            return None
        # More samples never take longer a sample, so this is the most.
        without = float(np.max(np.delete(busy_seconds, rank))) * (others + samples) / others
        seconds = float(busy_seconds[rank])
        if seconds * (1 - _LEAST_GAIN) <= without:
            return None
        return cls(rank, int(samples), seconds, without)

    def text(self, hosts: Sequence[str]) -> str:
        """One line for the log.

        Args:
            hosts: Of the ranks, by rank; empty: unknown.
        """
        where = f" on {hosts[self.rank]}" if hosts else ""
        samples = "1 sample" if self.num_samples == 1 else f"{self.num_samples} samples"
        return (
            f"the job would be faster without rank {self.rank}{where}: it takes "
            f"{1000 * self.seconds:.1f} ms for {samples}, the fewest it may have, and the others "
            f"would take at most {1000 * self.seconds_without:.1f} ms for all"
        )


class DropAdvice:
    """Follows the rounds of a job, and says once of each rank that it is dispensable."""

    def __init__(self) -> None:
        self._found: deque[DispensableRank | None] = deque(maxlen=_ROUNDS)
        self._said: set[int] = set()

    def after(
        self, batch_sizes: NDArray[np.float64], busy_seconds: NDArray[np.float64], bounds: Bounds
    ) -> DispensableRank | None:
        """What there is to say after another round; see `DispensableRank.of`."""
        found = DispensableRank.of(batch_sizes, busy_seconds, bounds)
        self._found.append(found)
        ranks = {one.rank if one is not None else None for one in self._found}
        if found is None or len(self._found) < _ROUNDS or len(ranks) > 1:
            return None
        if found.rank in self._said:
            return None
        self._said.add(found.rank)
        return found
