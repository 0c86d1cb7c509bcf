"""What is read of TCP connections: of given bytes, and of real ones."""

from __future__ import annotations

import math
import os
import socket
import struct
import threading

import pytest

from hvd_dbs.comm import tcp_info
from hvd_dbs.comm.tcp_info import TcpInfo, open_connections, plain_address

# As Linux 6.18 gave it over a link of 100 Mbit/s: 9 MB in 0.71 s, and 5 ms of round trip.
RECORDED = bytearray(256)
RECORDED[0:8] = bytes([1, 0, 0, 0, 0, 7, 0x77, 0])
for place, value in ((68, 7149), (148, 5012)):
    struct.pack_into("=I", RECORDED, place, value)
for place, value in ((120, 45_900_001), (160, 12_000_000), (168, 3_720_000), (176, 8_000)):
    struct.pack_into("=Q", RECORDED, place, value)


def changed(place, kind, value):
    data = bytearray(RECORDED)
    struct.pack_into(f"={kind}", data, place, value)
    return bytes(data)


def test_what_the_kernel_says_is_read():
    assert TcpInfo.parse(bytes(RECORDED)) == TcpInfo(45_900_001, 3.712, 0.005012, 12e6)


def test_what_it_does_not_know_is_unknown():
    limited = TcpInfo.parse(changed(7, "B", 1))
    assert limited is not None and math.isnan(limited.delivery_rate)
    early = TcpInfo.parse(changed(148, "I", 0xFFFFFFFF))
    assert early is not None and early.round_trip_seconds == 0.007149


@pytest.mark.parametrize("data", [b"", bytes(RECORDED[:160]), changed(0, "B", 7)])
def test_old_kernels_and_closed_connections_say_nothing(data):
    assert TcpInfo.parse(data) is None


def connected(family, address):
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        sender = socket.create_connection(listener.getsockname()[:2])
        return sender, listener.accept()[0]


def read_all(receiver, num_bytes):
    while num_bytes > 0:
        num_bytes -= len(receiver.recv(1 << 20))


@pytest.mark.parametrize(("family", "address"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")])
def test_own_connections_are_found_and_not_disturbed(monkeypatch, family, address):
    monkeypatch.setattr(tcp_info, "plain_address", lambda text: text)  # Loopback is left out else.
    try:
        sender, receiver = connected(getattr(socket, family), address)
    except OSError:
        pytest.skip(f"no {family} here")
    with sender, receiver:
        before = set(os.listdir("/proc/self/fd"))
        reader = threading.Thread(target=read_all, args=(receiver, 4_000_000))
        reader.start()
        sender.sendall(bytes(4_000_000))
        reader.join(30)
        sender.setblocking(False)
        found = {one.key: one for one in open_connections()}
        assert set(os.listdir("/proc/self/fd")) == before
        assert os.get_blocking(sender.fileno()) is False
        own = found[(sender.fileno(), address, receiver.getsockname()[1])]
        assert own.peer == address
        # The last acknowledgement may be on its way.
        assert 3_000_000 < own.info.bytes_acked <= 4_000_001
        assert 0 < own.info.round_trip_seconds < 60
        sender.setblocking(True)
        sender.sendall(b"still open")
        assert receiver.recv(10) == b"still open"


def test_what_stays_on_the_host_is_left_out():
    sender, receiver = connected(socket.AF_INET, "127.0.0.1")
    with sender, receiver:
        keys = {one.key[0] for one in open_connections()}
        assert not keys & {sender.fileno(), receiver.fileno()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("fe80::1%eth0", ""),
        ("::1", ""),
        ("0.0.0.0", ""),
        ("node1", ""),
    ],
)
def test_one_way_to_write_an_address(given, expected):
    assert plain_address(given) == expected
