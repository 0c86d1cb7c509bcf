"""What is done beside the training, and in which order."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from concurrent.futures import CancelledError
from functools import partial

import pytest

from hvd_dbs.comm.background import BackgroundThread


@pytest.fixture
def thread():
    made = BackgroundThread("test")
    yield made
    made.close()


def test_nobody_waits_for_what_is_started(thread):
    go, done = threading.Event(), []
    future = thread.start(lambda: (go.wait(10), done.append(1)))
    assert not done and not future.done()
    go.set()
    future.result(10)
    assert done


def test_what_is_waited_for_comes_behind_what_was_started(thread):
    go, order = threading.Event(), []
    thread.start(lambda: (go.wait(10), order.append("started")))
    threading.Timer(0.05, go.set).start()
    thread.do(lambda: order.append("waited for"))
    assert order == ["started", "waited for"]


def test_with_nothing_under_way_it_is_done_at_once_by_the_caller(thread):
    assert thread.do(threading.get_ident) == threading.get_ident()
    thread.start(lambda: None).result(10)
    assert thread.do(threading.get_ident) == threading.get_ident()


def test_what_is_under_way_may_have_parts(thread):
    def whole():
        return thread.do(threading.get_ident), threading.get_ident()

    part_in, whole_in = thread.start(whole).result(10)
    assert part_in == whole_in != threading.get_ident()


def test_an_error_is_the_callers_and_the_next_one_is_done_all_the_same(thread):
    failed = thread.start(lambda: 1 / 0)
    assert thread.start(lambda: 2).result(10) == 2
    with pytest.raises(ZeroDivisionError):
        failed.result(10)


def test_what_has_not_begun_when_it_is_closed_never_does(thread):
    go, done = threading.Event(), []
    under_way = thread.start(lambda: go.wait(10))
    after = thread.start(lambda: done.append(1))
    thread.close()
    go.set()
    assert under_way.result(10)
    with pytest.raises(CancelledError):
        after.result(10)
    with pytest.raises(CancelledError):
        thread.start(lambda: done.append(2)).result(10)
    assert not done


def test_what_could_get_no_thread_is_dropped_and_what_comes_later_is_done(thread, monkeypatch):
    def fail(self):
        raise RuntimeError("can't start new thread")

    done = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            thread.start(lambda: done.append("dropped"))
    thread.start(lambda: done.append("started")).result(10)
    thread.do(lambda: done.append("waited for"))
    assert done == ["started", "waited for"]


def test_what_it_has_used_does_not_live_on_while_it_waits(thread):
    class Used:
        pass

    used, is_gone = Used(), threading.Event()
    weakref.finalize(used, is_gone.set)
    thread.start(partial(id, used)).result(10)
    del used
    assert is_gone.wait(10)


def test_a_process_ends_whatever_it_waits_for():
    code = (
        "import threading\n"
        "from hvd_dbs.comm.background import BackgroundThread\n"
        "BackgroundThread('test').start(threading.Event().wait)\n"
        "print('over')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, "over\n")
