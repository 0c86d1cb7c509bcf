"""Ranks in messages."""

from __future__ import annotations

from collections.abc import Sequence


def name_ranks(ranks: Sequence[int], most: int = 8) -> str:
    """Ranks as a text such as "ranks 0, 1, 3"; of many the first ones.

    Example:
        >>> name_ranks([2]), name_ranks([0, 1, 3], most=2)
        ('rank 2', 'ranks 0, 1, ...')
    """
    text = ", ".join(str(rank) for rank in ranks[:most]) + (", ..." if len(ranks) > most else "")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
