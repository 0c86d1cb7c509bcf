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


def name_places(ranks: Sequence[int], hosts: Sequence[str], most: int = 8) -> str:
    """Ranks with their hosts, as a text; on one host, ranks alone. Of many the first ones.

    Args:
        ranks: Some ranks.
        hosts: The host of every rank of the job, by rank.
        most: Hosts, and ranks of each, that are named.

    Example:
        >>> name_places([2, 3], ["node1", "node1", "node2", "node2"])
        'node2 (ranks 2, 3)'
        >>> name_places([1], ["node1", "node1"])
        'rank 1'
    """
    if len(set(hosts)) == 1:
        return name_ranks(ranks, most)
    by_host: dict[str, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(hosts[rank], []).append(rank)
    named = [f"{host} ({name_ranks(of, most)})" for host, of in by_host.items()]
    return ", ".join(named[:most]) + (", ..." if len(named) > most else "")
