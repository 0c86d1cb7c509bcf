"""Whether a job is faster without its slowest ranks; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Bounds
from hvd_dbs.rank_names import name_places, name_ranks

_ROUNDS = 3
"""Rounds that have to show it."""

_LEAST_GAIN = 0.05
"""Less is not worth a rank."""

_SECONDS_OF_A_CHANGE = 10.0
"""What a change of ranks costs the others, about: they end a `fit`, meet, connect and begin another
one, within seconds for a small model; if the rank comes back, they also wait for its start."""


@dataclass(frozen=True)
class DispensableRanks:
    """Ranks that are slower at their fewest samples than the others would be with all.

    Attributes:
        ranks: Which.
        rank: The one of them that the figures are of: the others that are too slow take longer.
        num_samples: Its samples in a step: no plan gives it fewer.
        seconds: What it takes for them.
        seconds_without: What the slowest of the others would take at most, if they had all samples,
            in proportion to theirs.
    """

    ranks: tuple[int, ...]
    rank: int
    num_samples: int
    seconds: float
    seconds_without: float

    @classmethod
    def of(
        cls,
        batch_sizes: NDArray[np.float64],
        busy_seconds: NDArray[np.float64],
        bounds: Bounds,
        hosts: Sequence[str] = (),
        min_left: int = 1,
    ) -> DispensableRanks | None:
        """Those of a round without which the job is fastest, if there are any.

        Args:
            batch_sizes: Samples of each rank in a step, shape `[size]`.
            busy_seconds: What each rank took for them, NaN where unknown, shape `[size]`.
            bounds: Of the plans.
            hosts: Of the ranks, by rank, if the ranks of a host can leave only together.
            min_left: How many ranks have to be left, at least.

        Example:
            >>> bounds = Bounds.of(3, minimum=1)
            >>> sizes, seconds = np.array([50.0, 49.0, 1.0]), np.array([0.1, 0.1, 0.9])
            >>> found = DispensableRanks.of(sizes, seconds, bounds)
            >>> found.ranks, found.seconds, round(found.seconds_without, 3)
            ((2,), 0.9, 0.101)
        """
        if not np.isfinite(busy_seconds).all():
            return None
        size, total = len(batch_sizes), float(np.sum(batch_sizes))
        groups = np.unique(list(hosts), return_inverse=True)[1] if hosts else np.arange(size)
        # The busiest rank of each group, and the groups in their order: the slowest first.
        order = np.argsort(-busy_seconds, kind="stable")
        slowest = order[np.sort(np.unique(groups[order], return_index=True)[1])]
        by_group = [
            np.bincount(groups, weights=of_ranks)[groups[slowest]]
            for of_ranks in (batch_sizes, _most(bounds), np.ones(size))
        ]
        # Where the first group leaves, the first two, and so on.
        samples, room, num_left = (np.cumsum(of[:0:-1])[::-1] for of in by_group)
        seconds, next_seconds = busy_seconds[slowest][:-1], busy_seconds[slowest][1:]
        are_least = np.logical_and.accumulate(batch_sizes[slowest] <= _least(bounds)[slowest])[:-1]
        are_possible = are_least & (samples > 0) & (room >= total) & (num_left >= min_left)
        # More samples never take longer a sample, so this is the most.
        without = next_seconds * total / np.maximum(samples, 1)
        without[~are_possible | (seconds * (1 - _LEAST_GAIN) <= without)] = np.inf
        if not np.isfinite(without).any():
            return None
        last = int(np.argmin(without))
        ranks = np.flatnonzero(np.isin(groups, groups[slowest[: last + 1]]))
        rank = int(slowest[last])
        took = float(seconds[last]), float(without[last])
        return cls(tuple(ranks.tolist()), rank, int(batch_sizes[rank]), *took)

    def named(self, hosts: Sequence[str]) -> str:
        """The ranks as a text.

        Args:
            hosts: Of the ranks, by rank; empty: unknown.
        """
        if not hosts:
            return name_ranks(self.ranks)
        if len(self.ranks) == 1:
            return f"rank {self.rank} on {hosts[self.rank]}"
        return name_places(self.ranks, hosts)

    @property
    def reason(self) -> str:
        """Why, as a text that follows their names."""
        who = "it" if len(self.ranks) == 1 else f"rank {self.rank}"
        samples = "1 sample" if self.num_samples == 1 else f"{self.num_samples} samples"
        return (
            f"{who} takes {1000 * self.seconds:.1f} ms for {samples}, the fewest it may have, and "
            f"the others would take at most {1000 * self.seconds_without:.1f} ms for all"
        )

    def text(self, hosts: Sequence[str]) -> str:
        """One line for the log; see `named`."""
        return f"the job would be faster without {self.named(hosts)}: {self.reason}"


class DropDecision:
    """Follows the rounds of a job, and decides which ranks are to leave it.

    Ranks are to leave once several rounds in a row have shown that the job is faster without them,
    and they have cost it as many seconds as a change of ranks does. So the job never loses much
    more than that by a rank that stays slow, nor by a change for one that recovers.

    Args:
        hosts: Of the ranks, by rank, if those of one host leave together; empty: each for itself.
        min_left: How many ranks have to be left, at least.
    """

    def __init__(self, hosts: Sequence[str] = (), min_left: int = 1) -> None:
        self._hosts, self._min_left = hosts, min_left
        self._ranks: tuple[int, ...] = ()
        self._num_rounds, self._lost_seconds = 0, 0.0

    def after(
        self,
        batch_sizes: NDArray[np.float64],
        busy_seconds: NDArray[np.float64],
        bounds: Bounds,
        num_steps: int,
    ) -> DispensableRanks | None:
        """Those that are to leave after another round of so many steps; None: nobody."""
        given = (batch_sizes, busy_seconds, bounds, self._hosts, self._min_left)
        found = DispensableRanks.of(*given)
        ranks = () if found is None else found.ranks
        if ranks != self._ranks:
            self._ranks, self._num_rounds, self._lost_seconds = ranks, 0, 0.0
        if found is None:
            return None
        self._num_rounds += 1
        self._lost_seconds += num_steps * (found.seconds - found.seconds_without)
        lasts = self._num_rounds >= _ROUNDS
        costs = self._lost_seconds >= _SECONDS_OF_A_CHANGE
        return found if lasts and costs else None


def _least(bounds: Bounds) -> NDArray[np.int64]:
    """Fewest samples of a rank that takes part, by rank."""
    multiple = bounds.multiple_by_rank
    return -(-np.maximum(bounds.minimum, 1) // multiple) * multiple


def _most(bounds: Bounds) -> NDArray[np.float64]:
    return np.array([np.inf if most is None else most for most in bounds.maximum])
