"""The order of an epoch, looked up for several steps at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.sampling.epoch_order import EpochOrder

_POSITIONS = 4096


class ReadAhead:
    """Answers like an `EpochOrder`, faster for a reader that goes on with even strides.

    Looking up a few positions costs as much as looking up thousands. So whoever asks for a stretch
    of positions gets it together with the next ones at the same distance and of the same length;
    a changed plan only means that what was looked up is not used.

    Example:
        >>> order = ReadAhead(EpochOrder(num_samples=9, seed=None, epoch=0))
        >>> [order.indices(start, 2).tolist() for start in (0, 3, 6)]
        [[0, 1], [3, 4], [6, 7]]
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self._last_start = 0
        self._known: dict[tuple[int, int], NDArray[np.int64]] = {}

    def indices(self, start: int, count: int) -> NDArray[np.int64]:
        """The samples at positions `start` to `start + count - 1`, shape `[count]`.

        Raises:
            ValueError: If a position is outside of the epoch.
        """
        stride, self._last_start = start - self._last_start, start
        found = self._known.pop((start, count), None)
        if found is None:
            self._known = self._look_up(start, count, stride)
            found = self._known.pop((start, count))
        return found

    def _look_up(
        self, start: int, count: int, stride: int
    ) -> dict[tuple[int, int], NDArray[np.int64]]:
        """Stretches by start and length, the first as asked for."""
        starts = [start]
        if count > 0 and stride >= count:
            last = min(self._order.num_samples - count, start + stride * (_POSITIONS // count))
            starts += range(start + stride, last + 1, stride)
        if len(starts) == 1:
            return {(start, count): self._order.indices(start, count)}
        positions = np.array(starts)[:, np.newaxis] + np.arange(count)
        rows = self._order.at(positions.ravel()).reshape(positions.shape)
        return {(first, count): row for first, row in zip(starts, rows, strict=True)}
