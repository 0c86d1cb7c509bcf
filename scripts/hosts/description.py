"""What hosts and links are to be like. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit")
_DELAY = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_LOSS = re.compile(r"(\d+(?:\.\d+)?)%")
_BITS = {"k": 1e3, "m": 1e6, "g": 1e9}

MOST_HOSTS = 200


@dataclass(frozen=True)
class Link:
    """The link between a host and the switch that all hosts hang on.

    Attributes:
        rate: Bits a second in each direction; None: as fast as the machine.
        delay: Seconds that each packet takes, in each direction.
        loss: The part of the packets that is lost, in each direction.
    """

    rate: float | None = None
    delay: float = 0.0
    loss: float = 0.0

    @property
    def needs_forwarder(self) -> bool:
        """Whether it is more than a rate."""
        return bool(self.delay or self.loss)


@dataclass(frozen=True)
class Host:
    """One emulated host.

    Attributes:
        name: What it calls itself, and others call it.
        slots: Ranks that are to run on it.
        speed: Of a core, for each slot; 1: no limit of its own.
        cores: Numbers of the machine's cores that it may use; empty: all.
        link: How it is connected.
    """

    name: str
    slots: int = 1
    speed: float = 1.0
    cores: tuple[int, ...] = ()
    link: Link = field(default_factory=Link)


def parse_hosts(text: str) -> list[Host]:
    """Hosts from `a:2,b:2`.

    Raises:
        ValueError: If it is no such list.

    Example:
        >>> [(host.name, host.slots) for host in parse_hosts("a:2,b")]
        [('a', 2), ('b', 1)]
    """
    hosts: list[Host] = []
    for part in text.split(","):
        name, colon, slots = part.partition(":")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no host name; use lower-case letters, digits and hyphens"
            )
        if colon and not (slots.isdecimal() and int(slots) > 0):
            raise ValueError(
                f"{part!r}: {slots!r} is no number of slots; use NAME:SLOTS, such as a:2"
            )
        if any(host.name == name for host in hosts):
            raise ValueError(f"{name!r} comes twice; give all its slots at once")
        hosts.append(Host(name, int(slots) if colon else 1))
    if len(hosts) > MOST_HOSTS:
        raise ValueError(f"{len(hosts)} hosts are too many; at most {MOST_HOSTS}")
    return hosts


def parse_link(text: str) -> Link:
    """A link from `100mbit,20ms,1%`, in any order.

    Raises:
        ValueError: If a part is neither a rate, nor a delay, nor a loss.

    Example:
        >>> parse_link("100mbit,20ms")
        Link(rate=100000000.0, delay=0.02, loss=0.0)
    """
    link = Link()
    for part in text.split(","):
        if match := _RATE.fullmatch(part):
            link = replace(link, rate=float(match[1]) * _BITS[match[2]])
        elif match := _DELAY.fullmatch(part):
            link = replace(link, delay=float(match[1]) * (1e-3 if match[2] == "ms" else 1.0))
        elif match := _LOSS.fullmatch(part):
            link = replace(link, loss=float(match[1]) / 100)
        else:
            raise ValueError(f"{part!r} is no rate (100mbit), delay (20ms) or loss (1%)")
    if (link.rate is not None and link.rate < 1e4) or link.loss >= 1:
        raise ValueError(f"{text!r}: a rate is at least 10kbit, a loss below 100%")
    return link


def cpu_shares(hosts: Sequence[Host], num_cores: int) -> list[float]:
    """Cores' worth of CPU time that each host gets; all together get no more than there is.

    A slot of speed 1 gets one core, or less where cores do not suffice: all hosts are then scaled
    down alike, so that their relative speeds stay.

    Example:
        >>> cpu_shares([Host("a", 2), Host("b", 2, speed=0.5)], num_cores=2)
        [1.3333333333333333, 0.6666666666666666]
    """
    wanted = [host.slots * host.speed for host in hosts]
    factor = min(1.0, num_cores / sum(wanted))
    return [factor * share for share in wanted]
