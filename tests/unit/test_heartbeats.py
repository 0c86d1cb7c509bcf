"""Heartbeats over the loopback interface, and what others send there."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace

import psutil
import pytest

from hvd_dbs.watchdog import heartbeat_server, heartbeat_thread, process_kill
from hvd_dbs.watchdog.contacts import (
    Contact,
    Endpoint,
)
from hvd_dbs.watchdog.heartbeat import LEFT, REGROUPING, WAITING, Answer, Heartbeat
from hvd_dbs.watchdog.heartbeat_client import HeartbeatClient
from hvd_dbs.watchdog.heartbeat_server import HeartbeatServer
from hvd_dbs.watchdog.limits import Limits
from hvd_dbs.watchdog.packets import Channel, KeyPair
from hvd_dbs.watchdog.process_kill import ProcessName
from hvd_dbs.watchdog.stall_detection import StallDetector

KEYS = [KeyPair() for _ in range(3)]


class Job:
    """Rank 0's thread and those of others, in this process.

    Ranks are on hosts of their own, except for rank 2, which is a process on rank 1's.
    """

    def __init__(
        self, size=2, abort_seconds=0.5, one_host=False, process_of_2=None, period=0.02, **limits
    ):
        self.ended = []
        self.beats = [Heartbeat(rank, 1, doing=WAITING, operation="sum") for rank in range(size)]
        own = ProcessName.own()
        hosts = [own.host if one_host else "first", own.host, own.host]
        processes = [replace(own, host=host) for host in hosts[:size]]
        if process_of_2 is not None:
            processes[2] = process_of_2
        self.contacts = [
            Contact(process, keys.public, ["127.0.0.1"])
            for process, keys in zip(processes, KEYS, strict=False)
        ]
        self.limits = Limits(period, 10 * period, abort_seconds, **limits)
        detector = StallDetector(processes, self.limits, time.monotonic())
        self.server = HeartbeatServer(
            self.contacts, KEYS[0], detector, lambda: self.beats[0], self.end(0)
        )
        self.clients = []

    def end(self, rank):
        return lambda code: self.ended.append((rank, code))

    def client(self, rank=1, endpoint=None, keys=None):
        endpoint = endpoint or Endpoint.from_json(self.server.endpoint.to_json())
        client = HeartbeatClient(
            rank,
            endpoint,
            self.contacts,
            keys or KEYS[rank],
            self.limits,
            lambda: self.beats[rank],
            self.end(rank),
        )
        self.clients.append(client)
        return client

    def stop(self):
        for thread in [*self.clients, self.server]:
            thread.stop()


@pytest.fixture
def make_job(caplog):
    jobs = []

    def make(*arguments, **options):
        jobs.append(Job(*arguments, **options))
        return jobs[-1]

    with caplog.at_level(logging.INFO):
        yield make
    for job in jobs:
        job.stop()


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_a_rank_that_stands_still_ends_itself(make_job, caplog):
    job = make_job()
    job.beats[1] = replace(job.beats[1], doing="in a test")
    job.server.start()
    job.client().start()
    wait_for(lambda: job.ended)
    assert job.ended[0] == (1, 1)
    assert "rank 1 (host " in caplog.text
    assert "It is in a test. Rank 0 waits for it." in caplog.text


def test_a_rank_that_goes_on_at_that_moment_does_not_end(make_job):
    job = make_job()
    client = job.client()
    channel = Channel.of_pair(
        KEYS[0].shared(KEYS[1].public), job.server.endpoint.training, 1, is_rank_0=True
    )
    client._channel.num_sent = 5
    for beat in ({"progress": 2}, {"doing": LEFT}, {}):
        job.beats[1] = replace(job.beats[1], **beat)
        assert client._accept(channel.pack(asdict(Answer(5, end=1))), None)
    assert not job.ended
    job.beats[1] = replace(job.beats[1], progress=1, doing="in a test")
    assert not client._accept(channel.pack(asdict(Answer(1, end=1))), None)  # An old answer.
    assert not client._accept(channel.pack(asdict(Answer(5, (7,), (7,)))), None)  # Of 2 ranks.
    assert not job.ended
    assert client._accept(channel.pack(asdict(Answer(5, end=1))), None)
    assert job.ended


@pytest.mark.parametrize("is_elastic", [True, False])
def test_a_rank_of_a_lost_host(make_job, caplog, is_elastic):
    job = make_job(is_elastic=is_elastic)
    job.server.start()
    client = job.client()
    client.start()
    wait_for(lambda: job.server._senders)
    client._stopped.set()  # Without a goodbye.
    client._last = None
    client._thread.join()
    if is_elastic:
        wait_for(lambda: "Nobody is ended" in caplog.text)
        time.sleep(0.7)
        assert not job.ended
    else:
        wait_for(lambda: job.ended)
        assert job.ended[0] == (0, 1)
        assert f"rank 1 ({job.contacts[1].process})" in caplog.text


@pytest.fixture
def neighbour(monkeypatch):
    """A process on this host."""
    monkeypatch.setattr(process_kill, "_LEAST_SECONDS", 0.2)
    code = "import time\nwhile True: time.sleep(0.005)"
    with subprocess.Popen([sys.executable, "-c", code]) as popen:
        yield popen
        popen.kill()


@pytest.mark.parametrize("one_host", [True, False])
def test_a_silent_process_is_killed_if_it_does_not_run(make_job, neighbour, caplog, one_host):
    started = process_kill._start_of(neighbour.pid)
    name = replace(ProcessName.own(), pid=neighbour.pid, start=started)
    job = make_job(3, one_host=one_host, process_of_2=name)
    job.server.start()
    job.client().start()
    wait_for(lambda: "its process runs and is left alone" in caplog.text)
    time.sleep(0.7)
    assert neighbour.poll() is None
    neighbour.send_signal(signal.SIGSTOP)
    assert neighbour.wait(20) == -signal.SIGKILL
    wait_for(lambda: f"rank 2 (host {name.host}, process {name.pid}) is killed" in caplog.text)
    assert not job.ended


def test_a_silent_rank_0_has_nobody_killed(make_job, neighbour):
    """What it has ordered last may be long ago."""
    started = process_kill._start_of(neighbour.pid)
    name = replace(ProcessName.own(), pid=neighbour.pid, start=started)
    job = make_job(3, process_of_2=name)
    client = job.client()
    client._answer = Answer(1, look_at=(2,), kill=(2,))
    neighbour.send_signal(signal.SIGSTOP)
    for _ in range(25):
        client._do_period(job.beats[1], time.monotonic() + 0.02)
    assert neighbour.poll() is None


@pytest.mark.parametrize("doing", [LEFT, REGROUPING])
def test_a_rank_0_that_leaves_says_goodbye_though_it_was_busy(make_job, doing):
    # Answers count to a client's last packets alone: on a busy machine 20 ms make them old soon.
    job = make_job(abort_seconds=30, period=0.1)
    client = job.client()
    job.server.start()
    client.start()
    wait_for(lambda: job.server._senders)

    def late():
        time.sleep(1.0)  # Ten periods, whose packets it has not read.
        return replace(job.beats[0], doing=doing)

    job.server._sample = late
    wait_for(lambda: not client._thread.is_alive())
    assert client._answer.left == doing
    assert not job.ended


def test_another_rank_that_leaves_says_goodbye(make_job, caplog):
    job = make_job(abort_seconds=0.3)
    job.server.start()
    client = job.client()
    client.start()
    wait_for(lambda: job.server._senders)
    client.stop()
    wait_for(lambda: f"It is {LEFT}. Rank 0 waits for it." in caplog.text)
    time.sleep(0.5)
    assert not job.ended


def test_no_socket_is_left_open(make_job):
    before = {c.laddr for c in psutil.Process().net_connections("udp")}
    job = make_job()
    assert job.server.endpoint.address == "127.0.0.1"
    job.server.start()
    job.client().start()
    wait_for(lambda: job.server._senders)
    assert len({c.laddr for c in psutil.Process().net_connections("udp")} - before) == 2
    job.beats = [replace(beat, doing=LEFT) for beat in job.beats]  # A fit that has failed.
    wait_for(lambda: {c.laddr for c in psutil.Process().net_connections("udp")} <= before)


def test_a_silent_rank_0_is_named(make_job, caplog):
    job = make_job(one_host=True)
    job.client().start()
    wait_for(lambda: "has not answered rank 1" in caplog.text)
    time.sleep(0.7)
    assert not job.ended  # Its process, which is this one, runs.


def spoofed(job):
    """Packets of strangers: spoofed, damaged, of another kind; one a rank may end by."""
    training = job.server.endpoint.training
    stranger = KeyPair()
    shared = stranger.shared(KEYS[0].public)
    for rank in (0, 1, 2, 9):
        channel = Channel.of_pair(shared, training, rank, is_rank_0=False)
        channel.num_sent = 10**6
        data = channel.pack(asdict(replace(job.beats[1], doing="frozen", frozen=(0, 1))))
        yield from (data, data[:30], data + b"x" * 5000)
    yield from (b"", b"{}", json.dumps({"secret": "", "end": True}).encode(), b"HDW1" * 99)


def test_a_flood_ends_nobody_and_heartbeats_get_through(make_job, monkeypatch):
    monkeypatch.setattr(heartbeat_thread, "_MOST_REJECTED", 500)
    job = make_job(abort_seconds=3.0)
    job.server.start()
    client = job.client()
    client.start()
    wait_for(lambda: job.server._senders)
    packets = list(spoofed(job))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        targets = [job.server._socket.getsockname(), client._socket.getsockname()]
        for i in range(10_000):
            sender.sendto(packets[i % len(packets)], targets[i % 2])
            if i % 1000 == 0:
                time.sleep(0.1)
    received = job.server._channels[1].last_received
    wait_for(lambda: job.server._channels[1].last_received > received + 3)
    assert client._thread.is_alive()
    assert not job.ended


def test_a_flood_hides_nobody_as_silent(make_job, monkeypatch, caplog):
    """More arrives than is read."""
    monkeypatch.setattr(heartbeat_thread, "_MOST_REJECTED", 3)
    job = make_job(abort_seconds=0.2)
    job.server.start()
    over = time.monotonic() + 1.0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(8000):
            sender.sendto(b"x" * 60, job.server._socket.getsockname())
            if time.monotonic() > over:
                break
            time.sleep(1e-4)
        assert "rank 1 (" not in caplog.text
    assert "so many foreign datagrams" in caplog.text
    assert not job.ended


def test_a_replay_is_worth_nothing(make_job):
    job = make_job()
    channel = Channel.of_pair(
        KEYS[1].shared(KEYS[0].public), job.server.endpoint.training, 1, is_rank_0=False
    )
    data = channel.pack(asdict(job.beats[1]))
    assert job.server._accept(data, ("127.0.0.1", 9))
    assert not job.server._accept(data, ("127.0.0.1", 9))
    client = job.client()
    client._channel.num_sent = 1
    answer = job.server._channels[1].pack(asdict(Answer(1)))
    assert client._accept(answer, None)
    assert not client._accept(answer, None)


def test_reports_about_other_hosts_are_rejected(make_job):
    job = make_job()
    channel = Channel.of_pair(
        KEYS[1].shared(KEYS[0].public), job.server.endpoint.training, 1, is_rank_0=False
    )
    same_name = replace(job.server._processes[1], namespace="other")
    job.server._processes[0] = same_name
    for fields in ({"frozen": (0,)}, {"running": (5,)}, {"rank": 0}):
        data = channel.pack(asdict(replace(job.beats[1], **fields)))
        assert not job.server._accept(data, ("127.0.0.1", 9))


def test_few_keys_are_computed_in_a_period(make_job, monkeypatch):
    monkeypatch.setattr(heartbeat_server, "_MOST_NEW_KEYS", 1)
    job, fresh = make_job(3), KeyPair()
    job.server._keys = fresh
    for rank in (1, 2):
        channel = Channel.of_pair(
            KEYS[rank].shared(fresh.public), job.server.endpoint.training, rank, is_rank_0=False
        )
        data = channel.pack(asdict(job.beats[rank]))
        assert job.server._accept(data, ("127.0.0.1", 9)) == (rank == 1)
