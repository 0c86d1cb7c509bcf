"""What the rounds of a training measure of each class of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.measurement import LEAST_SECONDS, MOST_SECONDS
from hvd_dbs.balancing.speed_points import SpeedPoint

_ROUNDS_AT_ONCE = 64
_MOST_SIZES = 64
_MOST_COUNT = 256
"""Older rounds count for no more than this, so that speeds follow a change of pace."""


class MeasuredSpeeds:
    """Gathers what the rounds of a training measure, by class of ranks.

    Args:
        classes: Each rank's class, by rank; ranks whose class is empty are left out.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self._found: dict[str, dict[int, SpeedPoint]] = {}
        self._rounds: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        self.change_ranks(classes)

    def change_ranks(self, classes: Sequence[str]) -> None:
        """Other ranks from now on; what was measured of classes stays."""
        self._fold()
        names = np.array(classes, dtype=np.str_)
        self._rows = {str(name): names == name for name in np.unique(names) if name}

    def add(self, batch_sizes: NDArray[np.float64], busy_seconds: NDArray[np.float64]) -> None:
        """One round, shape `[size]` each; what is unknown or absurd is left out."""
        self._rounds.append((batch_sizes, busy_seconds))
        if len(self._rounds) >= _ROUNDS_AT_ONCE:
            self._fold()

    def speeds(self) -> dict[str, list[SpeedPoint]]:
        """What was measured so far, all of it."""
        self._fold()
        return {name: list(points.values()) for name, points in self._found.items() if points}

    def _fold(self) -> None:
        if not self._rounds:
            return
        b, t = (np.stack(rows) for rows in zip(*self._rounds, strict=True))
        self._rounds = []
        usable = np.isfinite(t) & (t > LEAST_SECONDS) & (t < MOST_SECONDS) & (b >= 1)
        for name, rows in self._rows.items():
            chosen = usable & rows
            found = self._found.setdefault(name, {})
            for batch_size, seconds in _by_size(b[chosen], t[chosen]):
                found[batch_size] = _mean(found.get(batch_size), batch_size, seconds)
            for rare in sorted(found, key=lambda size: found[size].count)[:-_MOST_SIZES]:
                del found[rare]


def _by_size(
    batch_sizes: NDArray[np.float64], seconds: NDArray[np.float64]
) -> list[tuple[int, NDArray[np.float64]]]:
    order = np.argsort(batch_sizes, kind="stable")
    sizes, starts = np.unique(batch_sizes[order], return_index=True)
    return list(zip(sizes.astype(int).tolist(), np.split(seconds[order], starts[1:]), strict=False))


def _mean(before: SpeedPoint | None, batch_size: int, seconds: NDArray[np.float64]) -> SpeedPoint:
    new, count = float(np.median(seconds)), min(len(seconds), _MOST_COUNT)
    if before is None:
        return SpeedPoint(batch_size, new, count)
    total = before.count + count
    mean = before.seconds + (new - before.seconds) * count / total
    return SpeedPoint(batch_size, mean, min(total, _MOST_COUNT))
