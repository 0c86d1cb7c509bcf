"""What holds a job back: slow ranks, unsteady ones, or the exchange of gradients; pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hvd_dbs.comm.links import Link
from hvd_dbs.job.step_parts import StepParts, percent

_MUCH = 0.25
"""Part of a step from which on what balancing cannot change holds a job back."""
_MUCH_WAITING = 0.1
_MOSTLY = 0.5
"""Communication of which this part or more is negotiation is not a matter of bytes."""
_CLEARLY_SLOWER = 0.5
"""A link of less than this part of the others' rate is named."""


@dataclass(frozen=True)
class Bottleneck:
    """What holds a job back.

    Attributes:
        kind: "communication", "ranks" (waiting for slow ones), "unsteady" (for ones that are slow
            by turns), or "none".
        parts: Of a step.
        is_network: Whether the ranks are on several hosts.
        slowest: The slowest link that is known, where communication holds the job back.
        others: Bytes a second of links that are clearly faster, their median; NaN: there are none.
        slow_host: The one host that all slow links, more than one, lead to or from, and no fast
            one; empty: there is none.
    """

    kind: Literal["communication", "ranks", "unsteady", "none"]
    parts: StepParts
    is_network: bool = False
    slowest: Link | None = None
    others: float = math.nan
    slow_host: str = ""

    @classmethod
    def of(cls, parts: StepParts, num_hosts: int, links: Sequence[Link] = ()) -> Bottleneck | None:
        """From what rounds have measured; None where they have not.

        Where nobody has timed the buckets, all that is no rank's own work is communication.

        Args:
            parts: Of a step.
            num_hosts: Of the job.
            links: What is known of them.
        """
        if not (math.isfinite(parts.rest) and math.isfinite(parts.waiting)):
            return None
        is_network, much = num_hosts > 1, max(_MUCH, 2 * parts.waiting)
        if _or(parts.communication, parts.rest) >= much:
            return cls("communication", parts, is_network, *_compare(links))
        if _or(parts.unsteady, 0.0) >= much:
            return cls("unsteady", parts, is_network)
        return cls("ranks" if parts.waiting >= _MUCH_WAITING else "none", parts, is_network)

    @property
    def names_a_link(self) -> bool:
        """Whether one link is clearly slower than the others."""
        return math.isfinite(self.others)

    @property
    def text(self) -> str:
        """The parts of a step, and the conclusion."""
        parts = self.parts
        communication = percent(_or(parts.communication, parts.rest))
        if math.isfinite(parts.negotiation):
            communication += f" (negotiation {percent(parts.negotiation)})"
        unsteady = ""
        if math.isfinite(parts.unsteady):
            unsteady = f", for ranks that are slow by turns {percent(parts.unsteady)}"
        return (
            f"communication takes {communication} of a step and waiting for slow ranks "
            f"{percent(parts.waiting)}{unsteady}: {self.conclusion}"
        )

    @property
    def conclusion(self) -> str:
        """What holds the job back; of links what is known."""
        if self.kind == "communication":
            what = "the network" if self.is_network else "the exchange of gradients"
            return f"{what} holds the job back, balancing cannot help.{self._cause}{self._links}"
        if self.kind == "unsteady":
            return (
                "ranks that are slow by turns hold the job back, balancing cannot help. Their "
                "steps differ more from step to step than from rank to rank."
            )
        if self.kind == "ranks":
            return "slow ranks hold the job back."
        return "neither slow ranks nor communication hold the job back."

    @property
    def _cause(self) -> str:
        if not self.parts.negotiation >= _MOSTLY * self.parts.communication:
            return ""
        return " Most of it is negotiation: try fewer ranks, or another HOROVOD_CYCLE_TIME."

    @property
    def _links(self) -> str:
        slowest = self.slowest
        if slowest is None:
            return ""
        rate = rate_text(slowest.bytes_per_second)
        if math.isfinite(slowest.round_trip_seconds):
            rate += f", {_milliseconds(slowest.round_trip_seconds)}"
        if self.names_a_link:
            rate += f"; others {rate_text(self.others)}"
            rate += f"; all links of {self.slow_host} are slow" if self.slow_host else ""
            return f" Slowest link: {slowest.source} - {slowest.target}, {rate}."
        return f" No link is clearly slower than {slowest.source} - {slowest.target}, {rate}."


def _or(part: float, other: float) -> float:
    return part if math.isfinite(part) else other


def _compare(links: Sequence[Link]) -> tuple[Link | None, float, str]:
    """The slowest link, the rate of those that are clearly faster, and the host of all slow ones.

    Nothing is called slow where nothing is fast.
    """
    if not links:
        return None, math.nan, ""
    by_rate = sorted(links, key=lambda link: link.bytes_per_second)
    least = _CLEARLY_SLOWER * by_rate[-1].bytes_per_second
    slow = [_ends(link) for link in by_rate if link.bytes_per_second < least]
    if not slow:
        return by_rate[0], math.nan, ""
    fast = by_rate[len(slow) :]
    hosts = frozenset.intersection(*slow) - frozenset().union(*map(_ends, fast))
    slow_host = next(iter(hosts)) if len(hosts) == 1 and len(set(slow)) > 1 else ""
    return by_rate[0], statistics.median(link.bytes_per_second for link in fast), slow_host


def _ends(link: Link) -> frozenset[str]:
    return frozenset((link.source, link.target))


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
