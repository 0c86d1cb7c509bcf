"""Gives back the samples that a deadline would allow beyond the global batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import Grid, TimeCurves


def give_back(
    curves: TimeCurves,
    grid: Grid,
    caps: NDArray[np.int64],
    total: int,
    deadline: float,
) -> NDArray[np.int64] | None:
    """Lowers `caps` to a sum of `total` with every rank on a point that meets the deadline.

    The slowest ranks give first, among equals the highest rank, one unit a round. Curves that
    fall somewhere have points below a cap that do not meet the deadline, and the rounds may get
    stuck on those.

    Args:
        curves: Seconds by rank.
        grid: Allowed units.
        caps: Most units by rank that meet the deadline, shape `[size]`.
        total: The sum wanted, at most `sum(caps)`.
        deadline: Seconds that no rank may exceed.

    Returns:
        Units by rank, shape `[size]`; None if no such plan was found.
    """
    units = caps.copy()
    surplus = int(units.sum()) - total
    depth = 1
    while surplus > 0 and depth <= min(surplus, 256):
        lower = units - depth
        seconds = curves.seconds(np.maximum(lower, 0).astype(np.float64) * grid.multiple_of)
        free = np.flatnonzero((lower >= grid.low) & (seconds <= deadline))
        if free.size == 0:
            depth += 1
            continue
        now = curves.seconds(units.astype(np.float64) * grid.multiple_of)[free]
        number = min(surplus // depth, free.size)
        late = now >= np.partition(now, free.size - number)[free.size - number]
        free, now = free[late], now[late]
        chosen = free[np.lexsort((-free, -now))][:number]
        units[chosen] = lower[chosen]
        surplus -= depth * chosen.size
        depth = 1
    return units if surplus == 0 else None


def reach_sum(
    curves: TimeCurves, grid: Grid, total: int, deadlines: tuple[float, float]
) -> NDArray[np.int64] | None:
    """The plan of the shortest deadline of all, by trying every sum that ranks 0..i can reach.

    For curves with holes: below a deadline, no choice of points may sum to `total` although
    larger and smaller sums exist. Work grows with ranks, times `total`, times what the second
    deadline allows beyond it.

    Args:
        curves: Seconds by rank.
        grid: Allowed units.
        total: The sum wanted.
        deadlines: One below the answer, and the longest that is of use.

    Returns:
        Units by rank, shape `[size]`; None if there is none at the second deadline either.
    """
    caps = curves.units_within(deadlines[1], grid)
    surplus = int(caps.sum()) - total
    if surplus < 0 or np.any(caps < grid.low):
        return None
    # Whoever does less than its share of the surplus allows leaves samples that nobody can do.
    low = np.maximum(grid.low, caps - surplus)
    levels = low[:, np.newaxis] + np.arange(int(np.max(caps - low)) + 1)
    seconds = [curves.seconds(units.astype(np.float64) * grid.multiple_of) for units in levels.T]
    table = np.stack(seconds, axis=1)
    table = np.where((levels > caps[:, np.newaxis]) | (table > deadlines[1]), np.inf, table)
    values = np.unique(table[np.isfinite(table) & (table >= deadlines[0])])
    units = None
    first, last = 0, values.size
    while first < last:
        middle = (first + last) // 2
        rows = zip(levels, table <= values[middle], strict=True)
        found = _choose([units[in_time].tolist() for units, in_time in rows], total)
        if found is None:
            first = middle + 1
        else:
            last, units = middle, found
    return units


def _choose(points: list[list[int]], total: int) -> NDArray[np.int64] | None:
    """One point of each rank, with sum `total`; reachable sums are the bits of whole numbers."""
    mask = (1 << (total + 1)) - 1
    reachable = [1]
    for allowed in points:
        sums = 0
        for level in allowed:
            sums |= reachable[-1] << level
        reachable.append(sums & mask)
    if not reachable[-1] >> total & 1:
        return None
    units = np.zeros(len(points), dtype=np.int64)
    rest = total
    for rank in range(len(points) - 1, -1, -1):
        before = reachable[rank]
        units[rank] = max(v for v in points[rank] if v <= rest and before >> (rest - v) & 1)
        rest -= int(units[rank])
    return units
