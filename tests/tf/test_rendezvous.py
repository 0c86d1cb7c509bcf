"""Ranks of an elastic job meet on the launcher's store, or find out that they cannot."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from horovod.runner.http.http_server import RendezvousServer

from hvd_dbs.comm import failure_notice, launcher_store
from hvd_dbs.elastic import rendezvous


@pytest.fixture(scope="module")
def server():
    """The launcher's; half a second is what it takes to stop."""
    server = RendezvousServer()
    port = server.start()
    yield server, port
    server.stop()


@pytest.fixture
def store(monkeypatch, server):
    server, port = server
    server.init([])  # Empty again.
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(port))
    monkeypatch.setenv(rendezvous.START_VARIABLE, "0.3")
    monkeypatch.setattr(rendezvous, "_SILENT_SECONDS", 0.2)


def meeting(rank, size):
    return rendezvous._Meeting(rendezvous._Slot(rank, size, 0, 1, rank, size))


def held(ranks, size):
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: meeting(rank, size).held(), ranks))


def test_ranks_that_are_all_here_go(store, monkeypatch):
    monkeypatch.setenv(rendezvous.START_VARIABLE, "60")  # The store may be slow to answer.
    monkeypatch.setattr(rendezvous, "_SILENT_SECONDS", 60.0)
    assert held(range(4), size=4) == [True] * 4


def test_the_first_failure_is_on_the_store(store, monkeypatch):
    monkeypatch.setattr(failure_notice.hvd, "size", lambda: 2)
    monkeypatch.setattr(failure_notice.hvd, "mpi_enabled", lambda: False)
    one, other = failure_notice.of_job(), failure_notice.of_job()
    assert other.received() == ""
    one.send("rank 0 has failed: zu groß")
    one.send("and again")
    assert other.received() == one.received() == "rank 0 has failed: zu groß"
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    assert failure_notice.of_job() is None  # The others go on.


def test_a_failure_that_names_a_file_not_in_utf_8_is_on_the_store(store, monkeypatch):
    monkeypatch.setattr(failure_notice.hvd, "size", lambda: 2)
    monkeypatch.setattr(failure_notice.hvd, "mpi_enabled", lambda: False)
    one, other = failure_notice.of_job(), failure_notice.of_job()
    one.send("no such file: a\udcff.jpg")
    assert other.received() == r"no such file: a\udcff.jpg"


def test_without_the_launcher_nobody_waits_for_long(store, monkeypatch):
    monkeypatch.setattr(failure_notice, "_SECONDS", 0.3)
    monkeypatch.setattr(failure_notice.hvd, "size", lambda: 2)
    monkeypatch.setattr(failure_notice.hvd, "mpi_enabled", lambda: False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(unused.getsockname()[1]))
        notice = failure_notice.of_job()
        notice.send("lost")
        assert notice.received() == ""


def test_alone_one_goes_at_once(store):
    assert meeting(0, size=1).held()


def test_ranks_go_back_where_one_does_not_come(store):
    assert held([0, 2], size=3) == [False, False]


def test_ranks_go_back_where_one_comes_and_dies(store, monkeypatch):
    monkeypatch.setenv(rendezvous.START_VARIABLE, "30")
    launcher_store.put("hvd_dbs", "1", "7", limit=5)  # And never again.
    late = threading.Event()

    def come_late(_rank):
        late.wait(20)
        return meeting(2, size=3).held()

    with ThreadPoolExecutor(1) as pool:
        newcomer = pool.submit(come_late, 2)
        assert not meeting(0, size=3).held()
        late.set()
        assert not newcomer.result()


def test_ranks_do_not_wait_for_ever_for_rank_0(store):
    assert held([1, 2], size=3) == [False, False]


@pytest.mark.parametrize("given", ["abc", "", "-1", "0", "nan", "inf", "30 s"])
def test_a_time_that_is_none_is_named(store, monkeypatch, given):
    monkeypatch.setenv(rendezvous.START_VARIABLE, given)
    said = f"HVD_DBS_START_SECONDS={given!r} is no time to wait; expected a number of seconds"
    with pytest.raises(ValueError, match=said):
        meeting(0, size=1)


def test_a_launcher_that_is_gone_is_named(monkeypatch):
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", "9")
    with pytest.raises(RuntimeError, match=r"launcher at 127\.0\.0\.1:9 does not answer"):
        launcher_store.get("hvd_dbs", "answer", limit=0.5)


@pytest.fixture
def mute(monkeypatch):
    """A launcher that accepts connections and answers nothing; it counts them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(listener.getsockname()[1]))
        monkeypatch.setattr(launcher_store, "ANSWER_SECONDS", 0.2)
        listener.setblocking(False)
        yield listener


def num_connections(listener):
    number = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            number += 1
    return number


def test_a_launcher_that_never_answers_is_named_after_a_limit(mute):
    with pytest.raises(RuntimeError, match=r"does not answer any more: timed out"):
        launcher_store.get("hvd_dbs", "answer", limit=1.0, wait=0.2)
    assert num_connections(mute) > 1


def test_a_place_is_asked_for_once_for_each_request_is_counted(mute):
    with pytest.raises(RuntimeError, match=r"does not answer any more: timed out"):
        launcher_store.get("rank_and_size", "host:0", limit=60.0, wait=0.5)
    assert num_connections(mute) == 1


def test_who_is_no_part_of_the_job_any_more_ends(store, monkeypatch):
    monkeypatch.setenv("HOROVOD_HOSTNAME", "gone")
    monkeypatch.setenv("HOROVOD_LOCAL_RANK", "0")
    monkeypatch.setattr(launcher_store, "get", lambda *_: "-1,-1,-1,-1,-1,-1")
    with pytest.raises(SystemExit) as ended:
        rendezvous._meet_anew()
    assert ended.value.code == 0
