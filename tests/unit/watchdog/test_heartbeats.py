"""Heartbeats over the loopback interface."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import psutil
import pytest

from hvd_dbs.watchdog import process_kill
from hvd_dbs.watchdog.heartbeat import LEFT, REGROUPING, Answer
from hvd_dbs.watchdog.packets import Channel
from hvd_dbs.watchdog.process_kill import ProcessName
from tests.unit.watchdog.heartbeat_jobs import KEYS, wait_for


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
