"""The judge of the fault tests finds each kind of wrong, and only that."""

from __future__ import annotations

import pytest

from tests.chaos.history import problems
from tests.chaos.schedule import KINDS, make_schedule


def begin(time, run, commits):
    return {"event": "begin", "time": time, "pid": 1, "run": run, "commits": commits}


def step(time, run, commits, epoch, ids, pid=1):
    return {
        **{"event": "step", "time": time, "process": pid, "run": run},
        **{"commits": commits, "epoch": epoch, "ids": ids},
    }


def end(commits=2, digest="same", pid=1):
    return {"event": "end", "time": 99, "process": pid, "commits": commits, "digest": digest}


GOOD = [
    begin(0, "a", 0),
    step(1, "a", 0, 0, [0, 1]),
    step(1, "a", 0, 0, [2], pid=2),
    step(2, "a", 1, 0, [3, 4]),  # Rank 2 has died: not committed.
    begin(3, "b", 1),
    step(4, "b", 1, 0, [4, 3, 5]),
    end(),
]


def test_a_step_that_was_not_committed_is_run_again():
    assert problems(GOOD, num_samples=6, num_epochs=1) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: [*e[:5], step(4, "b", 1, 0, [4, 3]), end()], "lost 1 samples, such as [5]"),
        (lambda e: [*e[:5], step(4, "b", 1, 0, [3, 4, 5, 0]), end()], "1 samples again"),
        # The next run says that it begins after the lost step.
        (lambda e: [*e[:4], begin(3, "b", 2), *e[5:]], "2 samples again"),
        (lambda e: [*e, end(digest="other", pid=2)], "weights of the 2 ranks differ"),
        (lambda e: [*e[:-1], step(5, "b", 1, 7, [0]), end()], "epochs [7] were not asked for"),
        (lambda e: e[:-1], "no rank has come to the end"),
    ],
)
def test_what_is_wrong_is_found(change, message):
    assert message in "; ".join(problems(change(GOOD), num_samples=6, num_epochs=1))


def test_seeds_give_all_kinds_of_faults_and_the_same_ones_again():
    schedules = [make_schedule(seed) for seed in range(len(KINDS))]
    assert {schedule.faults[0].kind for schedule in schedules} | {
        fault.kind for schedule in schedules for fault in schedule.faults
    } == set(KINDS)
    assert schedules == [make_schedule(seed) for seed in range(len(KINDS))]
