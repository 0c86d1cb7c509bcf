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
        device: Its kind of device; empty: not known.

    Raises:
        ValueError: If the share is negative or not finite.
    """

    share: float
    model: Any = None
    device: str = ""

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


def inherit(
    saved: Mapping[Slot, RankMemory], slots: Sequence[Slot], devices: Sequence[str] = ()
) -> list[RankMemory]:
    """What each rank of a job begins with.

    A rank on a slot that was there before has that slot's memory, unless the kind of device there
    is another one. Another rank begins with the memory of the rank in the middle, by share, among
    the known ones with its kind of device, on its host if there are any. Where its kind of device
    is not known, its slot counts whatever was there, then its host, then all ranks. So a job goes
    on by kind of device where names of hosts are made up for each run.

    Args:
        saved: What was known, by slot.
        slots: The slots of the ranks that there are now, shape `[size]`.
        devices: Their kinds of device, shape `[size]`; empty, as one of them may be: not known.

    Returns:
        Memories by rank, shape `[size]`; their shares are those of a plan to begin with.

    Raises:
        ValueError: If nothing was saved.

    Example:
        >>> saved = {("a", 0): RankMemory(4.0), ("a", 1): RankMemory(3.0), ("b", 0): RankMemory(1)}
        >>> [memory.share for memory in inherit(saved, [("b", 0), ("b", 1), ("a", 1), ("c", 0)])]
        [1, 1, 3.0, 3.0]
        >>> saved = {("a", 0): RankMemory(4.0, device="A100"), ("b", 0): RankMemory(1, device="T4")}
        >>> [memory.share for memory in inherit(saved, [("x", 0), ("y", 0)], ["T4", "A100"])]
        [1, 4.0]
    """
    if not saved:
        raise ValueError("no rank's memory was saved; expected that of one rank at least.")
    groups: dict[tuple[str | None, str | None], list[RankMemory]] = {}
    for (host, _), memory in saved.items():
        device = memory.device or None
        for group in {(host, device), (None, device), (host, None), (None, None)}:
            groups.setdefault(group, []).append(memory)
    middles = {group: _in_the_middle(memories) for group, memories in groups.items()}
    devices = devices or [""] * len(slots)
    return [
        _memory_of(slot, device, saved, middles)
        for slot, device in zip(slots, devices, strict=True)
    ]


def _memory_of(
    slot: Slot,
    device: str,
    saved: Mapping[Slot, RankMemory],
    middles: Mapping[tuple[str | None, str | None], RankMemory],
) -> RankMemory:
    """What one rank begins with, given the memories in the middle by host and kind of device."""
    host, before = slot[0], saved.get(slot)
    if before is not None and (not device or before.device in ("", device)):
        return before
    if device:
        for group in ((host, device), (None, device)):
            if group in middles:
                return middles[group]
    return before or middles.get((host, None)) or middles[None, None]


def _in_the_middle(memories: Iterable[RankMemory]) -> RankMemory:
    """The median by share, the lower one of two; among those with a model, if there are any."""
    ordered = sorted(memories, key=lambda memory: memory.share)
    known = [memory for memory in ordered if memory.model is not None] or ordered
    return known[(len(known) - 1) // 2]
