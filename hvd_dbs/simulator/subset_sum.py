"""Gives surplus samples back while every rank stays on an allowed number of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def give_back(
    caps: NDArray[np.int64],
    total: int,
    low: NDArray[np.int64],
    holes: Mapping[int, NDArray[np.int64]],
) -> NDArray[np.int64] | None:
    """Lowers `caps` to a sum of `total`, exactly, or says that it cannot be done.

    Args:
        caps: The most units of each rank, shape `[size]`; they sum to `total` at least.
        total: Units to hand out.
        low: The fewest units of each rank, shape `[size]`.
        holes: Ranks whose allowed units are not all from `low` to `caps`: the allowed ones,
            ascending, the last of which is the cap.

    Returns:
        Units by rank that sum to `total`, or None if there are none.

    Example:
        >>> holes = {0: np.array([4, 8]), 1: np.array([1, 2, 8])}
        >>> give_back(np.array([8, 8]), 10, np.array([1, 1]), holes).tolist()
        [8, 2]
        >>> give_back(np.array([8, 8]), 11, np.array([1, 1]), holes) is None
        True
    """
    units = caps.copy()
    solid = np.ones(len(units), dtype=bool)
    solid[list(holes)] = False
    _level(units, total, low, solid)
    surplus = int(units.sum()) - total
    if surplus and holes:
        part = -(-surplus // len(holes))
        for most in (part, surplus):  # First a fair part each, so that nobody gives all.
            for rank, allowed in holes.items():
                wish = units[rank] - min(most, surplus)
                lowered = allowed[np.searchsorted(allowed, wish)]
                surplus -= int(units[rank] - lowered)
                units[rank] = lowered
                if surplus == 0:
                    return units
    return units if surplus == 0 else _search(caps, total, low, holes)


def _level(
    units: NDArray[np.int64], total: int, low: NDArray[np.int64], solid: NDArray[np.bool_]
) -> None:
    """Takes the surplus from the ranks without holes, evenly, as far as they have it."""
    while (surplus := int(units.sum()) - total) > 0:
        room = np.where(solid, units - low, 0)
        with_room = np.flatnonzero(room > 0)
        if not with_room.size:
            return
        part = max(1, surplus // with_room.size)
        chosen = with_room[:surplus]
        units[chosen] -= np.minimum(room[chosen], part)


def _search(
    caps: NDArray[np.int64],
    total: int,
    low: NDArray[np.int64],
    holes: Mapping[int, NDArray[np.int64]],
) -> NDArray[np.int64] | None:
    """All sums of reductions that exist, as the bits of a number: exact, and slow."""
    surplus = int(caps.sum()) - total
    solid = np.ones(len(caps), dtype=bool)
    solid[list(holes)] = False
    room = int((caps - low)[solid].sum())
    mask = (1 << (surplus + 1)) - 1
    wanted = mask & ~((1 << max(0, surplus - room)) - 1)
    reachable, ranks = [1], []
    for rank, allowed in holes.items():
        if reachable[-1] & wanted:
            break
        sums = 0
        for units in allowed:
            sums |= reachable[-1] << int(caps[rank] - units)
        reachable.append(sums & mask)
        ranks.append(rank)
    hits = reachable[-1] & wanted
    if not hits:
        return None
    result = caps.copy()
    given = hits.bit_length() - 1
    from_solid = surplus - given
    for index in reversed(range(len(ranks))):
        rank = ranks[index]
        for units in holes[rank]:
            reduction = int(caps[rank] - units)
            if reduction <= given and reachable[index] >> (given - reduction) & 1:
                result[rank] = units
                given -= reduction
                break
    _level(result, int(result.sum()) - from_solid, low, solid)
    return result
