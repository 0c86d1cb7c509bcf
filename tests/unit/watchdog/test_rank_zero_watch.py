"""What the other ranks do where rank 0 is silent."""

from __future__ import annotations

from hvd_dbs.watchdog.findings import Action
from hvd_dbs.watchdog.heartbeat import WAITING
from hvd_dbs.watchdog.limits import Limits
from hvd_dbs.watchdog.rank_zero_watch import RankZeroWatch
from tests.unit.watchdog.heartbeat_jobs import actions, beat


def watch(is_neighbour=False, **limits):
    limits = Limits(1.0, 20.0, 40.0, **limits)
    return RankZeroWatch("rank 0 (host ha, process 100)", 1, limits, is_neighbour, answered=0.0)


def judged(rank_0, times, has_run=None, doing=WAITING, answers=(0,)):
    found = []
    for now in times:
        if now in answers:
            rank_0.note_answer(now)
        found += rank_0.judge(beat(1, doing), has_run, now)
    return found


def test_a_silent_rank_0_is_named_once():
    found = judged(watch(), range(35))
    assert actions(found) == [(0, Action.NONE)]
    assert "rank 0 (host ha, process 100) has not answered rank 1 for 20 s" in found[0].text
    assert judged(watch(), range(90), answers=range(90)) == []
    assert judged(watch(), range(90), doing="validating") == []  # It waits for nobody.


def test_rank_0_is_killed_only_if_its_process_does_not_run():
    assert actions(judged(watch(True), range(90), has_run=True)) == [(0, Action.NONE)]
    assert actions(judged(watch(True), range(90), has_run=None)) == [(0, Action.NONE)]
    frozen = judged(watch(True), range(41), has_run=False)
    assert actions(frozen) == [(0, Action.NONE), (0, Action.END_RANK)]
    assert "its process does not run" in frozen[0].text


def test_ranks_end_where_rank_0_is_out_of_reach_and_the_job_is_not_elastic():
    ended = judged(watch(), range(81))
    assert actions(ended) == [(0, Action.NONE), (0, Action.END_JOB)]
    assert actions(judged(watch(gloo_seconds=60.0), range(120))) == [(0, Action.NONE)]
    elastic = judged(watch(is_elastic=True, gloo_seconds=50.0), range(900))
    assert actions(elastic) == [(0, Action.NONE)]
    assert "Nobody is ended" in elastic[0].text
    assert actions(judged(watch(), range(900), answers=())) == [(0, Action.NONE)]


def test_rank_0_is_not_missed_while_steps_are_finished():
    rank_0, found = watch(True), []
    for now in range(200):
        found += rank_0.judge(beat(1, progress=min(now, 100)), False, now)
    assert found == []
