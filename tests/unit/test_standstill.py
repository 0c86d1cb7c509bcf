"""Who keeps a job from going on, from what ranks say of themselves."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from dataclasses import replace

import psutil
import pytest

from hvd_dbs.cluster import heartbeat
from hvd_dbs.cluster.activity import Activity
from hvd_dbs.cluster.frozen_process import end_if_here, own_process
from hvd_dbs.cluster.heartbeat import Beater, Listener, Meeting
from hvd_dbs.cluster.standstill import ENDED, WAITING, SignOfLife, Standstill


def sign(rank, doing=WAITING, progress=1):
    return SignOfLife(
        rank, f"host h{rank}, process {100 + rank}", progress, "epoch 2, step 7", doing
    )


def job(size=3, abort_seconds=None):
    return Standstill(size, 1.0, warn_seconds=20.0, abort_seconds=abort_seconds, begin=0.0)


def hear(standstill, doings, times, silent=()):
    """Signs of all ranks at each time; what is found."""
    found = []
    for now in times:
        for rank, doing in enumerate(doings):
            if rank not in silent or now == 0:
                found += standstill.note(sign(rank, doing), now)
        found += standstill.judge(now)
    return found


def test_the_rank_that_others_wait_for_is_named_once():
    standstill = job()
    found = hear(standstill, [WAITING, "validating", WAITING], range(60))
    assert len(found) == 1
    assert found[0].rank == 1
    assert found[0].text == (
        "rank 1 (host h1, process 101) has made no progress for 20 s. Last finished step: epoch 2, "
        "step 7. It is validating. Ranks 0, 2 wait for it."
    )


def test_it_is_said_when_it_goes_on_and_named_again():
    standstill = job()
    hear(standstill, [WAITING, "saving", WAITING], range(30))
    (over,) = standstill.note(sign(1, "saving", progress=2), 30.0)
    assert over.is_over
    assert "goes on after 30 s" in over.text
    again = hear(standstill, [WAITING, "saving", WAITING], range(31, 80))
    assert [finding.rank for finding in again] == [1]


def test_progress_is_no_standstill():
    standstill = job()
    for now in range(100):
        for rank in range(3):
            standstill.note(sign(rank, "reading data or computing", progress=now // 15), now)
        assert standstill.judge(now) == []


def test_a_silent_rank_is_named_whatever_it_said_last():
    found = hear(job(), [WAITING, WAITING, WAITING], range(30), silent=[2])
    assert [finding.rank for finding in found] == [2]
    assert found[0].silent
    assert "silent for 20 s: frozen, dead or out of reach" in found[0].text
    assert "Ranks 0, 1 wait for it" in found[0].text


def test_a_frozen_judge_accuses_nobody():
    standstill = job()
    assert hear(standstill, [WAITING] * 3, range(5)) == []
    standstill.note(sign(0, "in a callback"), 40.0)
    assert standstill.judge(40.0) == []
    found = hear(standstill, ["in a callback", WAITING, WAITING], range(41, 65))
    assert [finding.rank for finding in found] == [0]


def test_a_rank_that_was_never_heard_of_is_named():
    found = hear(job(), [WAITING, WAITING], range(30))
    assert [finding.rank for finding in found] == [2]
    assert "never heard of" in found[0].text


def test_all_waiting_for_each_other():
    found = hear(job(), [WAITING] * 3, range(30))
    assert [finding.rank for finding in found] == [-1]
    assert "all ranks have waited for each other for 20 s" in found[0].text


def test_a_rank_that_has_ended_is_named_only_if_others_wait():
    assert hear(job(), [ENDED] * 3, range(50)) == []
    found = hear(job(), [ENDED, WAITING, WAITING], range(50), silent=[0])
    assert [finding.rank for finding in found] == [0]
    assert "not training any more" in found[0].text


def test_a_rank_is_ended_once():
    found = hear(job(abort_seconds=40.0), [WAITING, "saving", WAITING], range(60))
    assert [(finding.rank, finding.abort, finding.silent) for finding in found] == [
        (1, False, False),
        (1, True, False),
    ]
    found = hear(job(abort_seconds=40.0), [WAITING] * 3, range(60), silent=[1])
    assert [(finding.rank, finding.abort, finding.silent) for finding in found] == [
        (1, False, True),
        (1, True, True),
    ]


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


@pytest.fixture
def ended():
    return []


@pytest.fixture
def threads(ended):
    """A listener on rank 0 and the signs of rank 1, with a period of 20 ms."""
    standstill = Standstill(2, 0.02, 0.2, 0.4, time.monotonic())
    doing = {0: WAITING, 1: "in a test"}
    listener = Listener(
        standstill, lambda: sign(0, doing[0]), True, lambda code: ended.append((0, code))
    )
    meeting = Meeting.from_json(listener.meeting.to_json())
    beater = Beater(
        meeting,
        lambda: sign(1, doing[1]),
        0.02,
        0.3,
        end_process=lambda code: ended.append((1, code)),
    )
    yield listener, beater, doing
    beater.stop()
    listener.stop()


def test_signs_of_life_travel(threads, ended, caplog):
    listener, beater, _ = threads
    with caplog.at_level(logging.INFO):
        listener.start()
        beater.start()
        wait_for(lambda: ended)
    assert ended[0] == (1, 1)  # Rank 0 has told rank 1 to end.
    assert "rank 1 (host h1, process 101) has made no progress" in caplog.text
    assert "It is in a test. Rank 0 waits for it." in caplog.text


def test_rank_0_ends_the_job_where_a_rank_is_silent(threads, ended, caplog):
    listener, _, _ = threads
    listener.start()
    wait_for(lambda: ended)
    assert ended[0] == (0, 1)
    assert "never heard of" in caplog.text


def test_a_frozen_process_of_this_host_is_killed(threads, ended):
    listener, _, _ = threads
    with subprocess.Popen(["sleep", "60"]) as frozen:
        frozen.send_signal(signal.SIGSTOP)
        started = psutil.Process(frozen.pid).create_time()
        name = f"{own_process().split('/')[0]}/{frozen.pid}/"
        assert not end_if_here(f"{name}{started + 9}")  # Its number was another one's before.
        assert not end_if_here(f"elsewhere/{frozen.pid}/{started}")
        listener._standstill.note(replace(sign(1), process=f"{name}{started}"), time.monotonic())
        listener.start()
        assert frozen.wait(20) == -signal.SIGKILL
    assert not ended  # The launcher sees to it.


def test_a_frozen_process_is_killed_by_a_rank_on_its_host(threads, ended, monkeypatch):
    listener, beater, _ = threads
    listener._standstill.size = 3
    frozen = replace(sign(2), process="elsewhere/2/0.0")
    listener._standstill.note(frozen, time.monotonic())
    beater._sign = lambda: replace(sign(1), process="elsewhere/1/0.0")
    killed = []
    monkeypatch.setattr(heartbeat, "end_if_here", killed.append)
    listener.start()
    beater.start()
    wait_for(lambda: len(killed) > 1)
    assert set(killed) == {frozen.process}  # By rank 0, in vain, and then by rank 1.
    assert not ended


def test_others_say_when_rank_0_is_silent(threads, caplog):
    _, beater, _ = threads
    beater.start()
    wait_for(lambda: "has not answered rank 1" in caplog.text)


def test_a_silent_rank_0_is_killed_by_a_rank_on_its_host(threads, ended, monkeypatch):
    _, beater, _ = threads
    killed = []
    monkeypatch.setattr(heartbeat, "end_if_here", killed.append)
    beater._abort_seconds = 0.1
    beater.start()
    wait_for(lambda: ended)  # The patched one kills nothing, so this rank ends itself.
    beater.stop()  # Before the patch ends: rank 0's process is this one.
    assert set(killed) == {own_process()}
    assert set(ended) == {(1, 1)}


def test_who_has_waited_long_is_given_its_time():
    standstill = job()
    assert hear(standstill, [WAITING, WAITING, "saving"], range(19)) == []
    assert hear(standstill, [WAITING, "saving", WAITING], range(19, 38)) == []
    found = hear(standstill, [WAITING, "saving", WAITING], range(38, 50))
    assert [finding.rank for finding in found] == [1]


def test_foreign_datagrams_are_ignored(threads, ended):
    listener, beater, doing = threads
    beater._meeting = replace(beater._meeting, secret="another")
    doing[0] = "in a test"
    listener._standstill.abort_seconds = None
    listener.start()
    beater.start()
    wait_for(lambda: listener._standstill._ranks.get(0))
    time.sleep(0.1)
    known = listener._standstill._ranks.get(1)
    assert known is None or known.sign.progress == -1
    assert not ended


def test_what_a_thread_does():
    seen, go_on = [], threading.Event()
    ready = threading.Event()

    def some_function_of_the_users():
        seen.append(Activity())
        ready.set()
        go_on.wait(20)

    thread = threading.Thread(target=some_function_of_the_users)
    thread.start()
    ready.wait(20)
    try:
        text = seen[0].describe(in_collective=False)
        assert text.startswith("in some_function_of_the_users (test_standstill.py, line ")
    finally:
        go_on.set()
        thread.join()


def test_another_fit_is_not_the_one_that_is_watched():
    """An elastic job goes on in another call of `fit`, from the same place."""
    names = {}
    exec(compile("def fit(inside): return inside()", "/keras/trainer.py", "exec"), names)
    fit = names["fit"]
    assert not fit(lambda: Activity().is_over)
    first = fit(Activity)
    assert fit(lambda: first.is_over)
    assert first._fit is None
