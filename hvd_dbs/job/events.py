"""What happens to a rank that its users want to know at once, with causes by name; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_dbs.job.journal_entries import RoundEntry
from hvd_dbs.job.scores import RankScores, SlowEvent
from hvd_dbs.job.step_parts import percent

_MUCH = 0.1
"""A part of the time from which on something is named as a cause."""

_FAULT_SECONDS = 1e-6
"""What a page fault takes at least: the kernel clears 4 KiB."""


@dataclass(frozen=True)
class RankEvent:
    """A rank fell far below its own best speed, or has recovered.

    Attributes:
        rank: Which.
        host: Where it runs; empty: unknown.
        is_slow: Whether it fell; otherwise it has recovered.
        score: Its speed over its own best, 0 to 1.
        against_others: Its speed over the median of the other ranks'; NaN: unknown.
        epoch: When it was seen.
        step: Steps of the epoch that were over then.
        causes: What is known of why it fell, in words.
    """

    rank: int
    host: str
    is_slow: bool
    score: float
    against_others: float
    epoch: int
    step: int
    causes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, event: SlowEvent, entry: RoundEntry, scores: RankScores, hosts: Sequence[str]
    ) -> RankEvent:
        """From what a round has shown.

        Args:
            event: Of which rank.
            entry: The round.
            scores: After it.
            hosts: Of the ranks, by rank; empty: unknown.
        """
        return cls(
            event.rank,
            hosts[event.rank] if hosts else "",
            event.is_slow,
            event.score,
            float(scores.against_others[event.rank]),
            entry.epoch,
            entry.step,
            tuple(_causes(event.rank, entry, hosts)) if event.is_slow else (),
        )

    @property
    def text(self) -> str:
        """One line for logs and messages."""
        who = f"epoch {self.epoch}, step {self.step}: rank {self.rank}"
        who += f" on {self.host}" if self.host else ""
        if not self.is_slow:
            return f"{who} has recovered: {self.score:.2f} of its own best speed"
        causes = "; ".join(self.causes) or "no cause is known"
        return f"{who} fell to {self.score:.2f} of its own best speed: {causes}"


def _causes(rank: int, entry: RoundEntry, hosts: Sequence[str]) -> list[str]:
    """What hinders a rank, the most certain first."""
    causes = []
    if (share := _of(entry.throttled_share, rank)) >= _MUCH:
        causes.append(f"its container's CPU quota was used up {percent(share)} of the time")
    busy_seconds = entry.busy_seconds[rank]
    if (share := _of(entry.input_seconds, rank) / busy_seconds) >= _MUCH:
        causes.append(f"it waits for its data {percent(share)} of its work")
    faults = _of(entry.page_faults, rank)
    if _FAULT_SECONDS * faults >= _MUCH * busy_seconds:
        causes.append(f"{faults:.0f} page faults a step")
    # Ranks on the same host are others too: their load is no cause.
    is_alone = bool(hosts) and list(hosts).count(hosts[rank]) == 1
    if is_alone and (load := _of(entry.cpu_load, rank)) >= _MUCH:
        causes.append(f"other processes use {percent(load)} of its host's processors")
    return causes


def _of(row: Sequence[float], rank: int) -> float:
    """A rank's number; 0: unknown."""
    return row[rank] if row and row[rank] >= 0 else 0.0
