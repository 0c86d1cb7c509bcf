"""Plans in which ranks have multiples of their own, such as micro-batches of different sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.apportionment import apportion
from hvd_dbs.balancing.bounds import Bounds


def apportion_multiples(
    total: int, shares: Sequence[float] | NDArray[np.float64], bounds: Bounds
) -> tuple[int, ...]:
    """Splits `total` samples in proportion to `shares`, in whole multiples of each rank.

    Ranks with the largest multiple come first. Together they get the number of samples that is
    nearest to their share, among those that the other ranks can complete; they split it by largest
    remainders. What is rounded there goes to ranks with smaller multiples.

    Args:
        total: Samples in the global batch.
        shares: Non-negative weights by rank, shape `[size]`; need not sum to 1.
        bounds: Fewest and most samples, and the multiples; each divides the next larger one.

    Returns:
        Samples by rank, shape `[size]`; they sum to `total` exactly.

    Raises:
        ValueError: If no such split is within the bounds, or a share is impossible.

    Example:
        >>> apportion_multiples(96, [1.0, 1.0, 2.0], Bounds.of(3, multiple_of=(8, 8, 32)))
        (16, 16, 64)
        >>> apportion_multiples(96, [1.0, 1.0, 1.2], Bounds.of(3, multiple_of=(8, 8, 32)))
        (32, 32, 32)
    """
    bounds.check(total)
    low, high = (units * bounds.multiple_of for units in bounds.in_units(total))
    wanted = np.array(
        apportion(
            total,
            shares,
            minimum=low.tolist(),
            maximum=high.tolist(),
            multiple_of=bounds.multiple_of,
        )
    )
    result = np.zeros(bounds.size, dtype=np.int64)
    left, multiples = total, bounds.multiple_by_rank
    for multiple in np.unique(multiples)[::-1].tolist():
        ranks, finer = multiples == multiple, multiples < multiple
        fewest, most = (int(one[ranks].sum()) // multiple for one in (low, high))
        number = next(
            number
            for number in _outwards(round(int(wanted[ranks].sum()) / multiple), fewest, most)
            if bounds.reaches(left - number * multiple, finer, total)
        )
        result[ranks] = apportion(
            number * multiple,
            np.maximum(wanted[ranks], 1),
            minimum=low[ranks].tolist(),
            maximum=high[ranks].tolist(),
            multiple_of=multiple,
        )
        left -= number * multiple
    return tuple(result.tolist())


def _outwards(middle: int, low: int, high: int) -> Iterator[int]:
    """Whole numbers from `low` to `high`, by their distance to `middle`."""
    middle = min(max(middle, low), high)
    yield middle
    for distance in range(1, high - low + 1):
        if middle - distance >= low:
            yield middle - distance
        if middle + distance <= high:
            yield middle + distance
