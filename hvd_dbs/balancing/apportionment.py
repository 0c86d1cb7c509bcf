"""Splits whole samples in proportion to shares, within bounds, without losing one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.bounds import Bounds


def apportion(
    total: int,
    shares: Sequence[float] | NDArray[np.float64],
    *,
    minimum: int | Sequence[int] = 0,
    maximum: int | Sequence[int | None] | None = None,
    multiple_of: int = 1,
) -> tuple[int, ...]:
    """Splits `total` samples in proportion to `shares`, without losing one.

    Largest-remainder method: floor every quota, then give what is left to the largest
    remainders; ties go to the lowest rank. Ranks whose quota violates a bound get the bound,
    and the others share what is left. Products of whole numbers below 2**53 are exact, so
    whole shares give the same result on every machine.

    Args:
        total: Samples in the global batch.
        shares: Non-negative weights by rank, shape `[size]`; need not sum to 1.
        minimum: Fewest samples that a rank may get, one number or one per rank.
        maximum: Most samples that a rank may get, one number or one per rank; None: no limit.
        multiple_of: Every rank's samples are a multiple of this.

    Returns:
        Samples by rank, shape `[size]`; they sum to `total` exactly.

    Raises:
        ValueError: If a share is negative or not finite, if all are zero, or if no split
            within the bounds sums to `total`.

    Example:
        >>> apportion(10, [2.0, 1.0, 1.0])
        (5, 3, 2)
        >>> apportion(64, [13.7, 16.5, 19.6, 14.2])
        (14, 16, 20, 14)
        >>> apportion(10, [2.0, 1.0, 1.0], maximum=4)
        (4, 3, 3)
    """
    bounds = Bounds.of(np.asarray(shares).size, minimum, maximum, multiple_of)
    return tuple(apportion_within(total, shares, bounds).tolist())


def apportion_within(
    total: int, shares: Sequence[float] | NDArray[np.float64], bounds: Bounds
) -> NDArray[np.int64]:
    """The same with bounds that are known already, but for multiples that differ by rank.

    Args:
        total: Samples in the global batch.
        shares: Non-negative weights by rank, shape `[size]`; need not sum to 1.
        bounds: Fewest and most samples, and what they are a multiple of.

    Returns:
        Samples by rank, shape `[size]`; they sum to `total` exactly.

    Raises:
        ValueError: As `apportion`.
    """
    weights = np.asarray(shares, dtype=np.float64)
    if weights.ndim != 1 or weights.size == 0:
        raise ValueError(f"shares has shape {weights.shape}; expected one share per rank.")
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise ValueError(f"shares={_shown(weights)} must be finite and not negative.")
    if not np.any(weights > 0):
        raise ValueError(f"shares={_shown(weights)} are all zero; at least one must be positive.")
    bounds.check(total)
    # Only the ratios count: the largest share becomes 1 unless whole numbers stay exact.
    if np.any(weights != np.floor(weights)) or weights.max() * max(total, 1) >= 2.0**53:
        weights = weights / weights.max()
    low, high = bounds.in_units(total)
    return _split(total // bounds.multiple_of, weights, low, high) * bounds.multiple_of


def _split(
    total: int, weights: NDArray[np.float64], low: NDArray[np.int64], high: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Splits `total` units; `low <= result <= high`, and `sum(low) <= total <= sum(high)`."""
    result = np.where(weights > 0, 0, low)
    free = np.ones(weights.size, dtype=bool)
    while np.any(free):
        rest = total - int(result[~free].sum())
        active = weights[free]
        if not np.any(active > 0):  # Only zero shares are left, and they must take the rest.
            active = np.ones(active.size)
        floors, remainders = np.divmod(rest * active, active.sum())
        quotas = floors + remainders / active.sum()
        too_low = np.maximum(low[free] - quotas, 0.0)
        too_high = np.maximum(quotas - high[free], 0.0)
        if not np.any(too_low > 0) and not np.any(too_high > 0):
            result[free] = _round(rest, floors, remainders, low[free], high[free])
            break
        # Fixing the side with the larger total violation first never has to be taken back.
        side, limit = (too_low, low) if too_low.sum() >= too_high.sum() else (too_high, high)
        fixed = np.flatnonzero(free)[side > 0]
        result[fixed] = limit[fixed]
        free[fixed] = False
    return result


def _round(
    total: int,
    floors: NDArray[np.float64],
    remainders: NDArray[np.float64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> NDArray[np.int64]:
    units = np.clip(floors.astype(np.int64), low, high)
    left = total - int(units.sum())
    while left != 0:  # Once, but for a quota that rounding pushed over a whole number.
        step = 1 if left > 0 else -1
        room = np.flatnonzero(high > units) if left > 0 else np.flatnonzero(units > low)[::-1]
        chosen = room[_largest(step * remainders[room], min(abs(left), room.size))]
        units[chosen] += step
        left -= step * chosen.size
    return units


def _largest(values: NDArray[np.float64], number: int) -> NDArray[np.intp]:
    """Where the largest values are, of equal ones the first; much faster than sorting them all."""
    least = np.partition(values, values.size - number)[values.size - number]
    larger = np.flatnonzero(values > least)
    return np.concatenate([larger, np.flatnonzero(values == least)[: number - larger.size]])


def _shown(values: NDArray[np.float64], most: int = 16) -> str:
    text = ", ".join(f"{value:g}" for value in values[:most])
    return f"({text}{', ...' if values.size > most else ''})"
