"""What both mechanisms offer, and the choice between them."""

from collections.abc import Sequence
from typing import Protocol

from heterogeneous.cgroup_quota import CgroupQuota
from heterogeneous.signal_duty import SignalDuty


class Throttle(Protocol):
    """Holds each rank to a share of one core: CPU seconds per second, over some milliseconds."""

    description: str

    def set_share(self, rank: int, share: float) -> None:
        """From now on `rank` gets `share` of a core; 1 is no limit."""

    def add(self, rank: int, pid: int) -> None:
        """Counts a process, with all its threads, to a rank. Adding it again is harmless."""

    def tick(self) -> float:
        """Does what is due now; returns the seconds until it wants to be called again."""

    def release(self) -> None:
        """Lets everything run freely."""

    def members(self) -> set[int]:
        """Process ids that are held now, of all ranks."""

    def close(self) -> None:
        """Removes whatever was made for the run, once its processes have ended."""


def choose_throttle(mechanism: str, num_ranks: int) -> Throttle:
    """Makes the throttle that was asked for; with "auto" a quota where that is possible.

    Raises:
        OSError: If "cgroup" was asked for and no group can be made; says why.
    """
    if mechanism == "signals":
        return SignalDuty(num_ranks)
    try:
        return CgroupQuota(num_ranks)
    except OSError as error:
        if mechanism == "cgroup":
            raise
        return SignalDuty(num_ranks, because=str(error))


def describe_shares(shares: Sequence[float], cores: Sequence[int]) -> str:
    """One line: which share of which core each rank has."""
    return ", ".join(
        f"rank {rank} {share:.3g} of core {core}"
        for rank, (share, core) in enumerate(zip(shares, cores, strict=True))
    )
