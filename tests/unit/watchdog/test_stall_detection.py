"""Which rank keeps a job from making progress, by the heartbeats of all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_dbs.watchdog.findings import Action
from hvd_dbs.watchdog.heartbeat import (
    BUILDING,
    LEFT,
    REGROUPING,
    WAITING,
    Answer,
    Heartbeat,
)
from hvd_dbs.watchdog.limits import Limits
from hvd_dbs.watchdog.process_kill import ProcessName
from hvd_dbs.watchdog.stall_detection import StallDetector
from tests.unit.watchdog.heartbeat_jobs import actions, beat


def job(hosts="abc", **limits):
    """A job with a rank on each of these hosts."""
    processes = [ProcessName(f"h{host}", 100 + rank, 1) for rank, host in enumerate(hosts)]
    return StallDetector(processes, Limits(1.0, 20.0, **limits), begin=0.0)


def follow(detector, doings, times, silent=(), **more):
    """Heartbeats of all ranks at each time; what is found."""
    found = []
    for now in times:
        for rank, doing in enumerate(doings):
            if rank not in silent or now == 0:
                found += detector.note(beat(rank, doing, **more), now)
        found += detector.judge(now)
    return found


def test_the_rank_that_others_wait_for_is_named_once():
    found = follow(job(), [WAITING, "validating", WAITING], range(60))
    assert actions(found) == [(1, Action.NONE)]
    assert found[0].text == (
        "rank 1 (host hb, process 101) has made no progress for 20 s. Last finished step: epoch 2, "
        "step 7. It is validating. Ranks 0, 2 wait for it."
    )


def test_it_is_reported_when_it_goes_on_and_named_again():
    detector = job()
    follow(detector, [WAITING, "saving", WAITING], range(30))
    (over,) = detector.note(beat(1, "saving", progress=2), 30.0)
    assert over.is_over
    assert "goes on after 30 s" in over.text
    again = follow(detector, [WAITING, "saving", WAITING], range(31, 80))
    assert [finding.rank for finding in again if not finding.is_over] == [1]


def test_progress_is_no_standstill():
    detector = job()
    for now in range(100):
        for rank in range(3):
            detector.note(beat(rank, "reading data or computing", progress=now // 15), now)
        assert detector.judge(now) == []


def test_a_rank_that_has_waited_long_is_given_its_time():
    detector = job()
    assert follow(detector, [WAITING, WAITING, "saving"], range(19)) == []
    assert follow(detector, [WAITING, "saving", WAITING], range(19, 38)) == []
    found = follow(detector, [WAITING, "saving", WAITING], range(38, 60))
    assert [finding.rank for finding in found] == [1]


def test_a_rank_that_stands_still_is_ended_once():
    found = follow(job(abort_seconds=40.0), [WAITING, "saving", WAITING], range(60))
    assert actions(found) == [(1, Action.NONE), (1, Action.END_RANK)]
    assert found[1].progress == 1
    assert follow(job(abort_seconds=40.0), ["saving"] * 3, range(90))[3:] == []  # Nobody waits.


def compute(cores, doing="reading data or computing"):
    """What is found where rank 1 uses so many cores while the others wait."""
    detector, found = job(abort_seconds=40.0), []
    for now in range(200):
        for rank in (0, 2):
            found += detector.note(beat(rank), now)
        found += detector.note(beat(1, doing, computing_seconds=cores * now), now)
        found += detector.judge(now)
    return found


def test_a_slow_rank_is_named_and_never_ended():
    slow = compute(0.5)
    assert actions(slow) == [(1, Action.NONE)]
    assert "It computes: it is slow, not stuck." in slow[0].text
    assert actions(compute(0.0, BUILDING)) == [(1, Action.NONE)]
    assert (1, Action.END_RANK) in actions(compute(0.01))


def test_a_silent_rank_is_named_whatever_it_reported_last():
    found = follow(job(), [WAITING, WAITING, WAITING], range(30), silent=[2])
    assert [finding.rank for finding in found] == [2]
    assert "rank 2 (host hc, process 102) has made no progress for 20 s" in found[0].text
    assert "It has been silent for 20 s: frozen, dead or out of reach" in found[0].text
    assert "Before, it was waiting for others. Ranks 0, 1 wait for it" in found[0].text


def test_a_judge_that_was_frozen_accuses_and_ends_nobody():
    """A virtual machine that was suspended with all ranks."""
    detector = job(abort_seconds=40.0)
    assert follow(detector, [WAITING, "saving", WAITING], range(5)) == []
    assert follow(detector, [WAITING, "saving", WAITING], range(1000, 1005)) == []
    found = follow(detector, [WAITING, "saving", WAITING], range(1005, 1030))
    assert actions(found) == [(1, Action.NONE)]


def test_a_rank_that_was_never_heard_of_is_named_and_never_ended():
    found = follow(job(abort_seconds=40.0), [WAITING, WAITING], range(100))
    assert actions(found) == [(2, Action.NONE)]
    assert "no heartbeat has arrived yet" in found[0].text


def test_a_slow_network_is_named_as_such_and_nobody_is_ended():
    found = follow(job(abort_seconds=40.0), [WAITING] * 3, range(200))
    assert actions(found) == [(-1, Action.NONE)]
    assert "in the same operation for 20 s: the sum of gradients" in found[0].text
    assert "the network is slow" in found[0].text


def test_ranks_in_different_operations_are_named_and_nobody_is_ended():
    detector, found = job("ab", abort_seconds=40.0), []
    for now in range(200):
        found += detector.note(beat(0), now)
        found += detector.note(replace(beat(1), operation="broadcast, called by f (x.py)"), now)
        found += detector.judge(now)
    assert actions(found) == [(-1, Action.NONE)]
    assert "not in the same operation. rank 0: the sum of gradients, after epoch 2" in found[0].text
    assert "rank 1: broadcast, called by f (x.py)" in found[0].text


@pytest.mark.parametrize("doing", [LEFT, REGROUPING])
def test_a_rank_that_has_left_is_named_only_if_others_wait_and_never_ended(doing):
    assert follow(job(), [doing] * 3, range(50)) == []
    found = follow(job(abort_seconds=30.0), [doing, WAITING, WAITING], range(90), silent=[0])
    assert actions(found) == [(0, Action.NONE)]
    assert f"It is {doing}." in found[0].text
    assert "silent" not in found[0].text


def test_a_neighbour_looks_at_a_silent_rank_before_it_kills_it():
    detector = job("abb", abort_seconds=40.0)
    follow(detector, [WAITING] * 3, range(10), silent=[2])
    assert detector.to_look_at == {2: False}
    follow(detector, [WAITING] * 3, range(10, 60), silent=[2])
    assert detector.to_look_at == {2: True}
    detector.note(beat(2), 60)
    detector.judge(60)
    assert detector.to_look_at == {}


@pytest.mark.parametrize("is_frozen", [True, False])
def test_what_a_neighbour_has_seen_is_reported(is_frozen):
    detector, found = job("abb", abort_seconds=40.0), []
    seen = {"frozen": (2,)} if is_frozen else {"running": (2,)}
    for now in range(90):
        found += detector.note(beat(0), now)
        found += detector.note(beat(1, **(seen if now > 10 else {})), now)
        if now == 0:
            found += detector.note(beat(2), now)
        found += detector.judge(now)
    assert set(actions(found)) == {(2, Action.NONE)}
    if is_frozen:
        assert "its process does not run" in found[0].text
        assert found[1].text.endswith("A rank on its host kills it, after 40 s.")
    else:
        assert len(found) == 1
        assert "its process runs and is left alone" in found[0].text


def silent_alone(**limits):
    return follow(job("aab", abort_seconds=20.0, **limits), [WAITING] * 3, range(90), silent=[2])


def test_an_elastic_job_that_has_lost_a_host_goes_on():
    found = silent_alone(is_elastic=True, gloo_seconds=30.0)
    assert actions(found) == [(2, Action.NONE)]
    for part in ("rank 2 (host hb", "HOROVOD_GLOO_TIMEOUT_SECONDS, 30 s", "ServerAliveInterval"):
        assert part in found[0].text


@pytest.mark.parametrize(("gloo_seconds", "end"), [(None, 20.0), (45.0, 45.0)])
def test_another_job_that_has_lost_a_host_is_ended(gloo_seconds, end):
    found = silent_alone(gloo_seconds=gloo_seconds)
    assert actions(found) == [(2, Action.NONE), (2, Action.END_JOB)]
    assert "rank 2 (host hb, process 102)" in found[1].text
    assert f"cannot go on without it, and is ended after {end:g} s" in found[1].text
    detector = job("aab", abort_seconds=20.0, gloo_seconds=gloo_seconds)
    found = follow(detector, [WAITING] * 3, range(int(end)), silent=[2])
    assert (2, Action.END_JOB) not in actions(found)


def test_machines_of_the_same_name_are_not_taken_for_one():
    detector = job("aaa", abort_seconds=20.0)
    detector.processes = [*detector.processes[:2], replace(detector.processes[2], namespace="b")]
    found = follow(detector, [WAITING] * 3, range(90), silent=[2])
    assert actions(found) == [(2, Action.NONE), (2, Action.END_JOB)]


def test_a_silent_rank_ends_no_job_while_another_rank_works():
    detector = job("abc", abort_seconds=20.0)
    found = follow(detector, [WAITING, "validating", WAITING], range(90), silent=[2], progress=3)
    assert (2, Action.END_JOB) not in actions(found)


def test_blocked_heartbeats_are_one_warning_and_end_nobody():
    detector, found = job("aabc", abort_seconds=20.0), []
    for now in range(200):  # From 100 s on all that are heard of wait.
        for rank in (0, 1):
            found += detector.note(beat(rank, progress=min(now, 100)), now)
        if now < 10:
            found += detector.note(beat(2, progress=now), now)
        found += detector.judge(now)
    assert {finding.action for finding in found} == {Action.NONE}
    assert found[0].rank == -1
    assert "no heartbeats of rank 3 (host hc) arrive, though training goes on: UDP" in found[0].text
    named = {finding.rank: finding.text for finding in found[1:]}
    assert set(named) == {2, 3}
    assert "its heartbeats are lost" in named[2]


@pytest.mark.parametrize("limits", [{}, {"is_elastic": True, "gloo_seconds": 30.0}])
def test_all_that_has_been_ended_is_silent(limits):
    """No rank that is heard of is ended, whatever becomes of the others."""
    detector = job("abcd", abort_seconds=20.0, **limits)
    found = follow(detector, [WAITING] * 4, range(90), silent=[2, 3])
    assert Action.END_RANK not in [finding.action for finding in found]


def test_fields_of_another_type_are_rejected():
    fields = {"rank": 1, "progress": 2, "doing": "x", "running": [3]}
    assert Heartbeat.from_fields(fields) == Heartbeat(1, 2, doing="x", running=(3,))
    wrong = {"rank": "1"}, {"rank": True}, {"rank": 1, "doing": 2}, {"rank": 1, "running": ["3"]}
    for other in (*wrong, {"rank": 1, "computing_seconds": None}, {"rank": 1, "no_field": 2}, {}):
        with pytest.raises(TypeError):
            Heartbeat.from_fields(other)
    for other in ({"answers": 1.0}, {"answers": 1, "kill": 2}, {"answers": 1, "left": 1}):
        with pytest.raises(TypeError):
            Answer.from_fields(other)


def test_an_elastic_job_aborts_before_gloo_does():
    limits = Limits(1.0, 20.0, 30.0, is_elastic=True, gloo_seconds=30.0)
    with pytest.raises(ValueError, match=r"abort_seconds=30 .* HOROVOD_GLOO_TIMEOUT_SECONDS=30"):
        limits.check()
    assert "no message names the rank" in replace(limits, is_elastic=False).check()
    for other in ({"abort_seconds": 29.0}, {"abort_seconds": None}, {"gloo_seconds": None}):
        assert replace(limits, **other).check() == ""


def test_a_large_job_spares_rank_0():
    assert Limits.of_job(1024, 20.0, 30.0, False, None) == Limits(1.0, 20.0, 30.0)
    assert Limits.of_job(2, 0.8, None, True, 30.0) == Limits(0.1, 0.8, None, True, 30.0)
    assert Limits.of_job(16384, 20.0, 30.0, False, None) == Limits(16.0, 128.0, 128.0)


def test_many_silent_ranks_are_a_few_lines():
    found = follow(job("ab" * 50), [WAITING] * 100, range(30), silent=range(10, 100))
    assert len(found) == 33
    assert found[-1].text == "58 more ranks like these keep the others waiting."
