"""Who begins with whose memory when the ranks of a job are not those it was saved with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Slot = tuple[str, int]
"""A host, and the number of a rank among the ranks on it, from 0."""


@dataclass(frozen=True)
class RankMemory:
    """What is known of a rank's pace.

    Attributes:
        share: What it got of the global batch, in any unit that is the same for all ranks; under
            a balanced plan shares are as speeds.
        model: What its time model remembers; None: not known.

    Raises:
        ValueError: If the share is negative or not finite.
    """

    share: float
    model: Any = None

    def __post_init__(self) -> None:
        if not 0 <= self.share < float("inf"):
            raise ValueError(f"share={self.share} of a rank must not be negative, nor infinite.")


def slots_by_rank(hosts: Sequence[str]) -> list[Slot]:
    """Each rank's slot, from the host of every rank.

    Example:
        >>> slots_by_rank(["a", "b", "a"])
        [('a', 0), ('b', 0), ('a', 1)]
    """
    return [(host, sum(other == host for other in hosts[:i])) for i, host in enumerate(hosts)]


def inherit(saved: Mapping[Slot, RankMemory], slots: Sequence[Slot]) -> list[RankMemory]:
    """What each rank of a job begins with.

    A rank on a slot that was there before has that slot's memory. Another one begins with that of
    the rank in the middle, by share, among those known on its host; on a host that is new, among
    all that are known.

    Args:
        saved: What was known, by slot.
        slots: The slots of the ranks that there are now, shape `[size]`.

    Returns:
        Memories by rank, shape `[size]`; their shares are those of a plan to begin with.

    Raises:
        ValueError: If nothing was saved.

    Example:
        >>> saved = {("a", 0): RankMemory(4.0), ("a", 1): RankMemory(3.0), ("b", 0): RankMemory(1)}
        >>> [memory.share for memory in inherit(saved, [("b", 0), ("b", 1), ("a", 1), ("c", 0)])]
        [1, 1, 3.0, 3.0]
    """
    if not saved:
        raise ValueError("no rank's memory was saved; expected that of one rank at least.")
    by_host: dict[str, list[RankMemory]] = {}
    for (host, _), memory in saved.items():
        by_host.setdefault(host, []).append(memory)
    in_the_middle = {host: _in_the_middle(memories) for host, memories in by_host.items()}
    of_all = _in_the_middle(saved.values())
    return [saved.get(slot) or in_the_middle.get(slot[0], of_all) for slot in slots]


def _in_the_middle(memories: Iterable[RankMemory]) -> RankMemory:
    """The median by share, the lower one of two; among those with a model, if there are any."""
    ordered = sorted(memories, key=lambda memory: memory.share)
    known = [memory for memory in ordered if memory.model is not None] or ordered
    return known[(len(known) - 1) // 2]
