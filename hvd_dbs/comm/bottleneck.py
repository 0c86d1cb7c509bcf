"""What holds a job back: slow ranks, or the exchange of gradients; pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hvd_dbs.comm.links import Link

_MUCH_COMMUNICATION = 0.25
_MUCH_WAITING = 0.1
_CLEARLY_SLOWER = 0.5
"""A link of less than this part of the others' rate is named."""


@dataclass(frozen=True)
class Bottleneck:
    """What holds a job back.

    Attributes:
        kind: "communication", "ranks" (waiting for slow ones), or "none".
        communication: Part of a step that is no rank's own work.
        waiting: Part of a step in which ranks wait for slower ones, their mean.
        is_network: Whether the ranks are on several hosts.
        slowest: The slowest link that is known, where communication holds the job back.
        others: Bytes a second of the other links, their median; NaN where none is known.
    """

    kind: Literal["communication", "ranks", "none"]
    communication: float
    waiting: float
    is_network: bool = False
    slowest: Link | None = None
    others: float = math.nan

    @classmethod
    def of(
        cls, communication: float, waiting: float, num_hosts: int, links: Sequence[Link] = ()
    ) -> Bottleneck | None:
        """From what rounds have measured; None where they have not.

        Args:
            communication: Part of a step that is no rank's own work.
            waiting: Part of a step in which ranks wait for slower ones.
            num_hosts: Of the job.
            links: What is known of them.
        """
        if not (math.isfinite(communication) and math.isfinite(waiting)):
            return None
        is_network = num_hosts > 1
        if communication >= max(_MUCH_COMMUNICATION, 2 * waiting):
            slowest, others = None, math.nan
            if links:
                slowest, *rest = sorted(links, key=lambda link: link.bytes_per_second)
                # The other direction of a slow link is slow as well.
                ends = {slowest.source, slowest.target}
                rates = [
                    link.bytes_per_second for link in rest if {link.source, link.target} != ends
                ]
                others = statistics.median(rates) if rates else math.nan
            return cls("communication", communication, waiting, is_network, slowest, others)
        is_slowed = waiting >= _MUCH_WAITING
        return cls("ranks" if is_slowed else "none", communication, waiting, is_network)

    @property
    def names_a_link(self) -> bool:
        """Whether one link is clearly slower than the others."""
        return (
            self.slowest is not None
            and self.slowest.bytes_per_second < _CLEARLY_SLOWER * self.others
        )

    @property
    def text(self) -> str:
        """The parts of a step, and the conclusion."""
        communication, waiting = f"{100 * self.communication:.0f} %", f"{100 * self.waiting:.0f} %"
        return (
            f"communication takes {communication} of a step and waiting for slow ranks {waiting}: "
            f"{self.conclusion}"
        )

    @property
    def conclusion(self) -> str:
        """What holds the job back; of links what is known."""
        if self.kind == "communication":
            what = "the network" if self.is_network else "the exchange of gradients"
            return f"{what} holds the job back, balancing cannot help.{self._links}"
        if self.kind == "ranks":
            return "slow ranks hold the job back."
        return "neither slow ranks nor communication hold the job back."

    @property
    def _links(self) -> str:
        slowest = self.slowest
        if slowest is None:
            return ""
        rate = rate_text(slowest.bytes_per_second)
        if math.isfinite(slowest.round_trip_seconds):
            rate += f", {_milliseconds(slowest.round_trip_seconds)}"
        if self.names_a_link:
            others = rate_text(self.others)
            return f" Slowest link: {slowest.source} - {slowest.target}, {rate}; others {others}."
        which = "All links are alike" if math.isfinite(self.others) else "The only link seen"
        return f" {which}: {slowest.source} - {slowest.target}, {rate}."


def rate_text(bytes_per_second: float) -> str:
    """A rate as network people write it.

    Example:
        >>> rate_text(12e6), rate_text(1.53e8), rate_text(2.5e8)
        ('96 Mbit/s', '1.2 Gbit/s', '2 Gbit/s')
    """
    bits = 8 * bytes_per_second
    unit, scale = ("Gbit/s", 1e9) if bits >= 0.9995e9 else ("Mbit/s", 1e6)
    number = bits / scale
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"
