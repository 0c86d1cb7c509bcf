"""A process is killed only if it is the one that is meant, and does not run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from hvd_dbs.watchdog import process_kill
from hvd_dbs.watchdog.computing import ComputingTime, communication_starts
from hvd_dbs.watchdog.process_kill import ProcessName, ProcessObserver, ThreadUse, kill


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(process_kill, "_LEAST_SECONDS", 0.2)


@pytest.fixture
def process():
    """A process whose second thread runs every few milliseconds, and its first never."""
    code = (
        "import threading, time; sleep = lambda: [time.sleep(0.005) for _ in range(12000)]; "
        "threading.Thread(target=sleep).start(); print(flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as popen:
        popen.stdout.readline()
        yield popen
        popen.kill()


def name_of(popen):
    return replace(ProcessName.own(), pid=popen.pid, start=process_kill._start_of(popen.pid))


def strangers(name):
    """Others, of which the last is in a container or on a machine with this one's name.

    Of containers that begin together, the first processes have the same numbers and starts.
    """
    of_others = {"host": "elsewhere", "start": name.start + 1, "namespace": "other"}
    return [replace(name, **{field: value}) for field, value in of_others.items()]


def looks(name, num=12):
    observer, seen = ProcessObserver(), []
    for _ in range(num):
        seen.append(observer.has_run(name))
        time.sleep(0.05)
    return seen


def test_a_process_that_runs_has_run(process):
    seen = looks(name_of(process))
    assert seen[0] is None
    assert set(seen[1:]) == {True}


def test_a_stopped_process_has_not_run_and_runs_again(process):
    process.send_signal(signal.SIGSTOP)
    name = name_of(process)
    time.sleep(0.05)
    seen = looks(name)
    assert set(seen[:3]) <= {None, True}
    assert seen[-1] is False
    process.send_signal(signal.SIGCONT)
    time.sleep(0.05)
    assert True in looks(name, 2)


def test_a_process_that_runs_now_and_then_is_left_alone(process):
    """As one is that an observer sees only while it is stopped."""
    observer, name, seen = ProcessObserver(), name_of(process), []
    for _ in range(12):
        process.send_signal(signal.SIGSTOP)
        seen.append(observer.has_run(name))
        process.send_signal(signal.SIGCONT)
        time.sleep(0.03)
    assert False not in seen


def test_a_starved_process_is_left_alone(process, monkeypatch):
    threads = {"1": ThreadUse(False, 0, 5, 5), "2": ThreadUse(True, 0, 7, 7)}
    monkeypatch.setattr(process_kill, "threads_of", lambda pid: threads)
    assert False not in looks(name_of(process))
    threads["2"] = ThreadUse(False, 0, 7, 7)
    assert looks(name_of(process))[-1] is False


def test_what_cannot_be_seen_is_not_known(process):
    name = name_of(process)
    process.kill()
    process.wait()
    for other in (name, *strangers(name)):
        assert set(looks(other, 2)) == {None}
        assert not kill(other)


def test_a_frozen_process_is_killed_by_its_name_alone(process):
    process.send_signal(signal.SIGSTOP)
    name = name_of(process)
    for other in strangers(name):
        assert set(looks(other, 2)) == {None}
        assert not kill(other)
    assert kill(name)
    assert process.wait(20) == -signal.SIGKILL


def test_a_thread_that_ends_while_threads_are_read_hides_no_other(monkeypatch, tmp_path):
    """With all of them hidden before Horovod's start, its whole process was taken for Horovod's."""
    own = f"{os.getpid()}/task"
    (tmp_path / own / "1").mkdir(parents=True)  # Its files are gone.
    (tmp_path / own / "2").symlink_to(f"/proc/{own}/{os.getpid()}")
    monkeypatch.setattr(process_kill, "_PROC", tmp_path)
    assert list(process_kill.threads_of(os.getpid())) == ["2"]
    assert process_kill.threads_of(1) == {}


@pytest.mark.parametrize("communicates", [True, False])
def test_threads_that_communicate_do_not_compute(communicates):
    over = threading.Event()

    def run():
        while not over.is_set():
            sum(range(100_000))

    thread, computing = threading.Thread(target=run), ComputingTime()
    with communication_starts() if communicates else contextlib.nullcontext():
        thread.start()
    assert computing.seconds() == 0
    time.sleep(0.5)
    seconds = computing.seconds()
    over.set()
    thread.join()
    assert (seconds < 0.05) == communicates
    assert computing.skip() == seconds


def test_own_name():
    own = ProcessName.own()
    assert own.is_here
    assert own.start > 0
    assert str(own) == f"host {own.host}, process {own.pid}"
