"""Packets of strangers, old ones and too many of them, on the port of the heartbeats."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, replace

from hvd_dbs.watchdog import heartbeat_server, heartbeat_thread
from hvd_dbs.watchdog.heartbeat import Answer
from hvd_dbs.watchdog.packets import Channel, KeyPair
from tests.unit.watchdog.heartbeat_jobs import KEYS, wait_for


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
