"""Who keeps a job from going on, from what ranks say of themselves."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import pytest

from hvd_dbs.cluster.activity import Activity
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
    assert [finding.rank for finding in standstill.judge(40.0)] == [0]


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
        meeting, lambda: sign(1, doing[1]), 0.02, 0.3, lambda code: ended.append((1, code))
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


def test_others_say_when_rank_0_is_silent(threads, caplog):
    _, beater, _ = threads
    beater.start()
    wait_for(lambda: "has not answered rank 1" in caplog.text)


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
