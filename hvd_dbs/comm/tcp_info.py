"""What Linux knows of this process's TCP connections; it is only read, no connection is touched."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import struct
import sys
from dataclasses import dataclass

_ESTABLISHED = 1
_SIZE = 256
"""Bytes to ask for; a kernel that knows less gives less."""
_LEAST_SIZE = 192
"""Up to the times of sending, which Linux has had since 4.10."""
_APP_LIMITED = 1


@dataclass(frozen=True)
class TcpInfo:
    """What is read of a connection.

    Attributes:
        bytes_acked: Bytes that this side has sent and the other has acknowledged.
        sending_seconds: How long this side had bytes under way, and the other had room for more.
        round_trip_seconds: The least lately, without the time that bytes wait in queues.
        delivery_rate: Bytes a second of the last measurement in which there was always more to
            send; NaN where the last one was of something else.
    """

    bytes_acked: int
    sending_seconds: float
    round_trip_seconds: float
    delivery_rate: float

    @classmethod
    def parse(cls, data: bytes) -> TcpInfo | None:
        """From the kernel's `struct tcp_info`; None of a connection that is not open.

        None as well where the kernel is too old to say how long it has been sending.
        """
        if len(data) < _LEAST_SIZE or data[0] != _ESTABLISHED:
            return None
        (smoothed,) = struct.unpack_from("=I", data, 68)
        (bytes_acked,) = struct.unpack_from("=Q", data, 120)
        (least,) = struct.unpack_from("=I", data, 148)
        delivery_rate, busy, no_room = struct.unpack_from("=QQQ", data, 160)
        is_limited = bool(data[7] & _APP_LIMITED) or not delivery_rate
        return cls(
            bytes_acked=bytes_acked,
            sending_seconds=max(busy - no_room, 0) / 1e6,
            # The least is all ones before there is one.
            round_trip_seconds=min(least or smoothed, smoothed) / 1e6,
            delivery_rate=float("nan") if is_limited else float(delivery_rate),
        )


@dataclass(frozen=True)
class Connection:
    """An open TCP connection of this process.

    Attributes:
        key: Tells it from all others that are open at the same time.
        peer: Address of the other side.
        info: What the kernel knows of it.
    """

    key: tuple[int, str, int]
    peer: str
    info: TcpInfo


def plain_address(text: str) -> str:
    """An address as all sides write it; empty where it is none that another host can reach.

    Example:
        >>> plain_address("::ffff:10.0.0.1"), plain_address("127.0.0.1"), plain_address("fe80::1%2")
        ('10.0.0.1', '', '')
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    address = getattr(address, "ipv4_mapped", None) or address
    is_own = address.is_loopback or address.is_link_local or address.is_unspecified
    return "" if is_own else str(address)


def open_connections() -> list[Connection]:
    """All TCP connections of this process that can leave its host; empty where there is no Linux.

    Neither Gloo, nor Open MPI, nor NCCL notices: descriptors are neither copied nor changed, since
    a copy that lives on when its owner closes it keeps the connection open.
    """
    if not sys.platform.startswith("linux"):
        return []
    found = []
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        peer = _peer(descriptor)
        if peer is None:
            continue
        info = TcpInfo.parse(_tcp_info(descriptor))
        # Other threads close and open descriptors meanwhile.
        if info is not None and _peer(descriptor) == peer:
            found.append(Connection((descriptor, *peer), peer[0], info))
    return found


_LIBC = ctypes.CDLL(None, use_errno=True)


def _peer(descriptor: int) -> tuple[str, int] | None:
    """Address and port of the other side; None of what is no such connection."""
    data, length = ctypes.create_string_buffer(128), ctypes.c_uint32(128)
    if _LIBC.getpeername(descriptor, data, ctypes.byref(length)):
        return None
    (family,) = struct.unpack_from("=H", data.raw)
    (port,) = struct.unpack_from("!H", data.raw, 2)
    parts = {socket.AF_INET: data.raw[4:8], socket.AF_INET6: data.raw[8:24]}
    if family not in parts:
        return None
    address = plain_address(str(ipaddress.ip_address(parts[socket.AddressFamily(family)])))
    return (address, port) if address else None


def _tcp_info(descriptor: int) -> bytes:
    """The kernel's `struct tcp_info`; empty where there is none."""
    data, length = ctypes.create_string_buffer(_SIZE), ctypes.c_uint32(_SIZE)
    level, option = socket.IPPROTO_TCP, 11  # TCP_INFO
    if _LIBC.getsockopt(descriptor, level, option, data, ctypes.byref(length)):
        return b""
    return data.raw[: length.value]
