"""What the ranks of a job know of each other before anything else: hosts, addresses, versions."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvd_dbs.comm.agreement import allgather_text
from hvd_dbs.comm.collective import Collective
from hvd_dbs.comm.tcp_info import plain_address
from hvd_dbs.rank_names import name_places

_MARK = "hvd_dbs introduction"
"""Other versions of hvd_dbs must understand each other here, so this and the names below stay."""
_MOST_ADDRESSES = 32


@dataclass(frozen=True)
class Introduction:
    """A rank.

    Attributes:
        host: Name of its host.
        addresses: At which other hosts may reach it.
        versions: Of what all ranks must have alike, by name.
    """

    host: str
    addresses: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls, versions: Mapping[str, str]) -> Introduction:
        """This process."""
        return cls(socket.gethostname(), own_addresses(), versions)

    @classmethod
    def of(cls, text: str) -> Introduction:
        """From another rank's text; of one that has not introduced itself everything is unknown."""
        try:
            plain: Any = json.loads(text)
            if plain["mark"] != _MARK:
                raise ValueError
            versions = {str(name): str(one) for name, one in plain["versions"].items()}
            return cls(str(plain["host"]), tuple(map(str, plain["addresses"])), versions)
        except (ValueError, LookupError, TypeError, AttributeError):
            return cls("?")

    @property
    def text(self) -> str:
        """For the other ranks."""
        plain = {"host": self.host, "addresses": self.addresses, "versions": dict(self.versions)}
        return json.dumps({"mark": _MARK, **plain})


def own_addresses() -> tuple[str, ...]:
    """The addresses at which other hosts may reach this one."""
    import psutil  # The doctor runs where it is missing.

    try:
        interfaces = psutil.net_if_addrs().values()
    except OSError:
        return ()
    addresses = [
        plain
        for interface in interfaces
        for one in interface
        if one.family in (socket.AF_INET, socket.AF_INET6) and (plain := plain_address(one.address))
    ]
    return tuple(addresses[:_MOST_ADDRESSES])


def gather(collective: Collective, versions: Mapping[str, str]) -> list[Introduction]:
    """The ranks of the job, by rank, whatever their versions are. Collective."""
    texts = allgather_text(collective, Introduction.here(versions).text)
    return [Introduction.of(text) for text in texts]


def differences(ranks: Sequence[Introduction]) -> dict[str, str]:
    """What is not the same on all ranks, by name: which version is where, as a text."""
    hosts = [one.host for one in ranks]
    found = {}
    for name in dict.fromkeys(name for one in ranks for name in one.versions):
        places: dict[str, list[int]] = {}
        for rank, one in enumerate(ranks):
            places.setdefault(one.versions.get(name, "unknown"), []).append(rank)
        if len(places) > 1:
            given = "; ".join(
                f"{value} on {name_places(of, hosts)}" for value, of in places.items()
            )
            found[name] = f"{name} is not the same on all ranks: {given}"
    return found


def introduce(collective: Collective, versions: Mapping[str, str]) -> list[Introduction]:
    """The ranks of the job, by rank. Collective; the first exchange of all.

    Args:
        collective: The job.
        versions: What must be alike on all ranks, by name.

    Raises:
        RuntimeError: On all ranks, if a version is not the same on all of them.
    """
    ranks = gather(collective, versions)
    lines = [f"{text}." for text in differences(ranks).values()]
    if lines:
        lines.append(
            "Install the same hvd_dbs on all hosts; hvd-dbs doctor, started like the job, "
            "compares everything else as well."
        )
        raise RuntimeError("\n".join(lines))
    return ranks
