"""How fast each rank is, against the others and against its own best; pure.

The two scores are those of NVIDIA's straggler detection (NVIDIA Resiliency Extension): a relative
and an individual one. A rank that fell is an event once, until it has recovered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.measurement import Rows

WINDOW = 3
"""Rounds whose median counts: a pause in one of them changes no score."""

SLOW_BELOW = 0.7
"""The score at which NVIDIA's tool too calls a rank a straggler."""

RECOVERED_ABOVE = 0.85
"""Halfway back to full speed, so that noise at the threshold is one event, not many."""

_BIN = 1.25
"""Batch sizes within this ratio share the shortest time that is remembered."""

_NUM_BINS = 64
"""Up to a million samples of a rank in a step; larger batches share the last bin."""


@dataclass(frozen=True)
class SlowEvent:
    """A rank fell below the threshold, or has recovered.

    Attributes:
        rank: Which.
        is_slow: Whether it fell; otherwise it has recovered.
        score: Its speed over its own best.
    """

    rank: int
    is_slow: bool
    score: float


@dataclass(frozen=True)
class RankScores:
    """What is known of the ranks' speeds after some rounds.

    A rank with a fixed cost a step processes fewer samples a second when its batch gets smaller,
    and is not slow for that. So a time at one batch size only bounds the time at another: more
    samples never take less time, and a sample of a larger batch never takes more. At batch sizes
    that were measured before, the bounds are that measurement.

    Attributes:
        is_slow: Which ranks fell and have not recovered, shape `[size]`.

    Example:
        >>> scores = RankScores.of(3)
        >>> for busy_seconds in 3 * [[0.1, 0.1, 0.2]] + 2 * [[0.2, 0.1, 0.2]]:
        ...     scores, events = scores.after([32, 32, 32], busy_seconds)
        >>> scores.against_others.tolist(), scores.against_own_best.tolist()
        ([0.6666666666666666, 2.0, 0.6666666666666666], [0.5, 1.0, 1.0])
        >>> events
        (SlowEvent(rank=0, is_slow=True, score=0.5),)
    """

    is_slow: NDArray[np.bool_]
    _batch_sizes: NDArray[np.float64]
    """Of the last rounds, the newest last, NaN where there were fewer; shape `[window, size]`."""
    _seconds: NDArray[np.float64]
    """Busy seconds in them, likewise."""
    _best_sizes: NDArray[np.float64]
    """The batch size of the shortest time in each bin, shape `[bins, size]`."""
    _best_seconds: NDArray[np.float64]
    """That time, infinite where there is none, likewise."""

    @classmethod
    def of(cls, size: int) -> RankScores:
        """Before the first round of so many ranks."""
        unknown = np.full((WINDOW, size), np.nan)
        return cls(
            is_slow=np.zeros(size, dtype=bool),
            _batch_sizes=unknown,
            _seconds=unknown,
            _best_sizes=np.ones((_NUM_BINS, size)),
            _best_seconds=np.full((_NUM_BINS, size), np.inf),
        )

    def after(
        self, batch_sizes: Rows, busy_seconds: Rows
    ) -> tuple[RankScores, tuple[SlowEvent, ...]]:
        """What is known once another round is over, and what happened in it.

        A rank whose timing is unknown, or that had no samples, keeps its scores.

        Args:
            batch_sizes: Samples of each rank in a step, shape `[size]`.
            busy_seconds: A rank's own work in a step, NaN where unknown, shape `[size]`.
        """
        samples = np.asarray(batch_sizes, dtype=np.float64)
        seconds = np.asarray(busy_seconds, dtype=np.float64)
        known = (samples > 0) & (seconds > 0) & np.isfinite(seconds)
        seen = replace(
            self,
            _batch_sizes=_shifted(self._batch_sizes, samples, known),
            _seconds=_shifted(self._seconds, seconds, known),
        )
        seen = seen._remember(known & seen._has_window & ~self.is_slow)
        score = seen.against_own_best
        fell = known & ~self.is_slow & (score < SLOW_BELOW)
        # A smaller batch may hide that a rank is still slow: it must be fast by the least estimate.
        back = known & self.is_slow & (seen._least_score >= RECOVERED_ABOVE)
        events = tuple(
            SlowEvent(rank, bool(fell[rank]), float(score[rank]))
            for rank in np.flatnonzero(fell | back).tolist()
        )
        return replace(seen, is_slow=(self.is_slow | fell) & ~back), events

    @property
    def against_others(self) -> NDArray[np.float64]:
        """Each rank's samples a second over the median of the other ranks'; NaN: unknown; `[size]`.

        Over their median and not over the best one: one fast rank makes no other rank a slow one.
        """
        speeds = _medians(self._batch_sizes / self._seconds)
        return speeds / _medians_of_others(speeds)

    @property
    def against_own_best(self) -> NDArray[np.float64]:
        """Each rank's speed over the least that its best times allow, at most 1; NaN: unknown.

        Shape `[size]`. At a batch size that is new to a rank this is 1 unless the rank takes longer
        than a bound by its best times.
        """
        longest = np.min(
            self._best_seconds * np.maximum(1.0, self._newest / self._best_sizes), axis=0
        )
        return self._over(longest, self._now(np.minimum))

    @property
    def _least_score(self) -> NDArray[np.float64]:
        """The same over the most that its best times allow, shape `[size]`."""
        known = np.isfinite(self._best_seconds)
        shortest = np.where(known, self._best_seconds, 0.0)
        shortest *= np.minimum(1.0, self._newest / self._best_sizes)
        return self._over(np.max(shortest, axis=0), self._now(np.maximum))

    def _over(
        self, best_seconds: NDArray[np.float64], now: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        score = np.minimum(best_seconds / now, 1.0)
        return np.where(
            np.isfinite(self._best_seconds).any(axis=0) & self._has_window, score, np.nan
        )

    @property
    def _newest(self) -> NDArray[np.float64]:
        return np.asarray(self._batch_sizes[-1])

    @property
    def _has_window(self) -> NDArray[np.bool_]:
        return np.asarray(np.isfinite(self._seconds[0]))

    def _now(self, bound: np.ufunc) -> NDArray[np.float64]:
        """Median seconds of the last rounds at the newest batch size, `[size]`.

        Args:
            bound: `np.minimum` for the least that they allow, `np.maximum` for the most.
        """
        ratio = np.asarray(bound(1.0, self._newest / self._batch_sizes), dtype=np.float64)
        return _medians(self._seconds * ratio)

    def _remember(self, ranks: NDArray[np.bool_]) -> RankScores:
        """With the times of these ranks, where they are the shortest at their batch sizes."""
        chosen = np.flatnonzero(ranks)
        now, newest = self._now(np.maximum)[chosen], self._newest[chosen]
        bins = np.minimum(np.log(newest) / np.log(_BIN), _NUM_BINS - 1).astype(np.int64)
        # By time per sample: batch sizes of a bin may differ a little.
        old = self._best_seconds[bins, chosen] / self._best_sizes[bins, chosen]
        shorter = now / newest < old
        places = bins[shorter], chosen[shorter]
        best_sizes, best_seconds = self._best_sizes.copy(), self._best_seconds.copy()
        best_sizes[places], best_seconds[places] = newest[shorter], now[shorter]
        return replace(self, _best_sizes=best_sizes, _best_seconds=best_seconds)


def scores_of(size: int, rounds: Iterable[tuple[Rows, Rows]]) -> RankScores:
    """The scores after some rounds.

    Args:
        size: Number of ranks.
        rounds: Batch sizes and busy seconds of each, first to last, rows of shape `[size]`.
    """
    scores = RankScores.of(size)
    for batch_sizes, busy_seconds in rounds:
        scores, _ = scores.after(batch_sizes, busy_seconds)
    return scores


def _shifted(
    rows: NDArray[np.float64], newest: NDArray[np.float64], known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Rows with another one at the end, for those ranks of which it is known."""
    return np.where(known, np.concatenate([rows[1:], newest[np.newaxis]]), rows)


def _medians(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """By column, of what is known; NaN where nothing is."""
    rows = np.sort(rows, axis=0)  # Unknown ones last.
    counts = np.isfinite(rows).sum(axis=0)
    columns = np.arange(rows.shape[1])
    low = rows[np.maximum(counts - 1, 0) // 2, columns]
    return np.asarray((low + rows[counts // 2, columns]) / 2)


def _medians_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each value the median of the others that are known; NaN where there are none.

    Example:
        >>> _medians_of_others(np.array([1.0, 2.0, 4.0, np.nan])).tolist()
        [3.0, 2.5, 1.5, nan]
    """
    medians = np.full(len(values), np.nan)
    order = np.argsort(values)[: np.isfinite(values).sum()]
    others = len(order) - 1
    if others < 1:
        return medians
    place = np.arange(len(order))
    low, high = ((others - 1) // 2, others // 2)
    rows = values[order]
    medians[order] = (rows[low + (low >= place)] + rows[high + (high >= place)]) / 2
    return medians
