"""Where ranks can be reached, and the network interface of the job."""

from __future__ import annotations

import collections
import ipaddress
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import psutil

from hvd_dbs.watchdog.process_kill import ProcessName

_NAME_VARIABLES = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
_MPI_VARIABLE = "OMPI_MCA_btl_tcp_if_include"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Contact:
    """What a rank lets the others know of it.

    Attributes:
        process: Its process.
        public: Its public value, see `packets.KeyPair`.
        addresses: IPv4 addresses of its host, those of the job's interface alone if it is set.
    """

    process: ProcessName
    public: str
    addresses: list[str]

    def to_json(self) -> str:
        """As text for the other ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Contact:
        """From that text."""
        fields = json.loads(text)
        return cls(ProcessName(**fields.pop("process")), **fields)


@dataclass(frozen=True)
class Endpoint:
    """Where rank 0 listens.

    Attributes:
        address: IPv4 address.
        port: UDP port.
        training: A name that no other training has.
    """

    address: str
    port: int
    training: str

    def to_json(self) -> str:
        """As text for the other ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Endpoint:
        """From that text."""
        return cls(**json.loads(text))


def host_addresses() -> list[str]:
    """This host's IPv4 addresses; those of the job's interface alone, if a variable names it."""
    found = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    return interface_addresses(found, os.environ) or [
        address
        for addresses in found.values()
        for address in addresses
        if not address.startswith("127.")
    ]


def interface_addresses(
    found: Mapping[str, Sequence[str]], environment: Mapping[str, str]
) -> list[str]:
    """Addresses of the interface that an environment variable of the job names; maybe none.

    Args:
        found: Addresses by interface.
        environment: HOROVOD_GLOO_IFACE and NCCL_SOCKET_IFNAME hold names or, for NCCL, beginnings
            of names; Open MPI's variable holds names or networks such as 10.0.0.0/8.

    Example:
        >>> interface_addresses({"eth0": ["10.0.0.7"]}, {"NCCL_SOCKET_IFNAME": "eth"})
        ['10.0.0.7']
    """
    for variable in (*_NAME_VARIABLES, _MPI_VARIABLE):
        given = environment.get(variable, "")
        if given.startswith("^"):
            continue  # What not to use.
        for entry in given.lstrip("=").split(","):
            if "/" in entry and variable == _MPI_VARIABLE:
                addresses = _within(found, entry)
            else:
                addresses = list(found.get(entry, []))
            if not addresses and entry and variable == "NCCL_SOCKET_IFNAME":
                addresses = next((list(a) for n, a in found.items() if n.startswith(entry)), [])
            if addresses:
                return addresses
    return []


def address_for(contacts: Sequence[Contact]) -> str:
    """Rank 0's address: loopback on one host, else the one by which it reaches most other hosts.

    Args:
        contacts: Those of all ranks; the first is this one.
    """
    own = contacts[0]
    others = {c.process.place: c for c in contacts if c.process.place != own.process.place}
    if not others:
        return _LOOPBACK
    reached = (_route(own.addresses, other.addresses) for other in others.values())
    sources = collections.Counter(address for address in reached if address in own.addresses)
    if sources:
        return sources.most_common(1)[0][0]
    return own.addresses[0] if own.addresses else _LOOPBACK


def _route(own: Sequence[str], others: Sequence[str]) -> str | None:
    """The source address of datagrams to a host; nothing is sent."""
    for address in others:
        if address in own:  # Each host has such a one, as that of a container bridge.
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, 9))
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None


def _within(found: Mapping[str, Sequence[str]], network: str) -> list[str]:
    try:
        parsed = ipaddress.ip_network(network, strict=False)
    except ValueError:
        return []
    return [
        a for addresses in found.values() for a in addresses if ipaddress.ip_address(a) in parsed
    ]
