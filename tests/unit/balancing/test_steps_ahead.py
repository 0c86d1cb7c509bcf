"""How far a data pipeline has to be ahead, found out on pipelines of known speed."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from hvd_dbs.balancing.steps_ahead import LEAST, MOST, UNKNOWN, StepsAhead


class Training:
    """Steps of a second, fed by a pipeline that works on all batches it may at a time.

    Args:
        batch_seconds: What a batch takes.
        usual: What a step waits whatever the pipeline does.
        workers: Batches that it works on at a time.
    """

    def __init__(self, batch_seconds, usual=0.0, workers=100):
        self.batch_seconds, self.usual, self.workers = batch_seconds, usual, workers
        self.now, self.begun, self.due = 0.0, 0, deque()
        self.free = deque([0.0] * workers)

    def run(self, num_steps, steps_ahead):
        waits = []
        for _ in range(num_steps):
            while len(self.due) <= steps_ahead:
                begin = max(self.now, self.free.popleft())
                self.due.append(begin + self.batch_seconds)
                self.free.append(begin + self.batch_seconds)
            ready = max(self.due.popleft(), self.now) + self.usual
            waits.append(ready - self.now)
            self.now = ready + 1.0
        waited = np.array(waits)
        return waited, waited + 1.0


def trained(training, num_rounds, one=None, steps_in_round=5):
    one, in_force, seen = one or StepsAhead(), LEAST, []
    for _ in range(num_rounds):
        one = one.after(*training.run(steps_in_round, in_force), in_force)
        in_force = one.wanted
        seen.append(in_force)
    return one, seen


@pytest.mark.parametrize("batch_seconds", [0.3, 1.5, 2.5, 5.0, 12.0])
def test_as_many_as_the_pipeline_needs_and_no_more(batch_seconds):
    _, seen = trained(Training(batch_seconds), 30)
    needed = max(LEAST, int(np.ceil(batch_seconds)))
    assert needed - 1 <= seen[-1] <= needed + 1
    waited, _ = Training(batch_seconds).run(200, seen[-1])
    assert waited[100:].mean() < 0.05


def test_what_more_steps_do_not_shorten_is_taken_back_and_borne():
    for training in (Training(0.1, usual=0.3), Training(3.0, workers=2)):
        one, seen = trained(training, 100)
        assert max(seen[:20]) > LEAST
        assert np.ptp(seen[60:]) <= 1
        assert one.usual_wait > 0.2
    # A pipeline that becomes slower on top of it is still noticed.
    training = Training(0.1, usual=0.3)
    one, _ = trained(training, 40)
    training.batch_seconds = 5.0
    _, seen = trained(training, 40, one)
    assert seen[-1] >= 3


def test_fewer_are_tried_again_ever_more_rarely():
    training = Training(5.0)
    one, before = trained(training, 30)
    training.batch_seconds = 0.5
    one, seen = trained(training, 600, one)
    assert seen[-1] == LEAST
    training.batch_seconds = 2.5
    _, seen = trained(training, 2000, one)
    tries = np.flatnonzero(np.diff(seen[100:]) < 0)
    assert len(tries) <= 8  # In 10,000 steps.
    assert np.mean(seen[100:]) > before[-1] / 2 - 1


def test_a_pause_passes():
    training = Training(0.3)
    one, _ = trained(training, 10)
    waits, steps = training.run(5, LEAST)
    waits[2] += 30.0
    one = one.after(waits, steps + waits, LEAST)
    one, seen = trained(training, 800, one)
    assert max(seen) > LEAST == seen[-1]


def test_steps_count_once_all_ranks_prepare_as_many():
    slow = Training(5.0)
    one, _ = trained(slow, 3)
    assert one.wanted > LEAST
    assert one.after(*slow.run(50, LEAST), LEAST) is one


def test_where_nobody_sees_the_waiting_three_are_prepared():
    nobody = np.full(5, np.nan)
    assert StepsAhead().after(nobody[:1], nobody[:1], LEAST).wanted == LEAST
    assert StepsAhead().after(nobody, nobody, LEAST).wanted == UNKNOWN
    seen = StepsAhead().after(*Training(0.1).run(5, LEAST), LEAST)
    assert seen.after(nobody, nobody, LEAST).wanted == LEAST


def test_there_is_an_end_to_it():
    _, seen = trained(Training(100.0), 200)
    assert max(seen) == MOST


def test_waiting_that_has_passed_is_no_longer_usual():
    training = Training(0.1, usual=0.5)
    one, _ = trained(training, 40)
    assert one.usual_wait > 0.4
    training.usual = 0.0
    one, _ = trained(training, 40, one)
    assert one.usual_wait == 0.0
    training.batch_seconds = 3.0
    _, seen = trained(training, 40, one)
    assert seen[-1] >= 3


def test_who_needs_more_than_all_have_says_so():
    """Seven are in force, for another rank's sake, when this rank's batches take twelve steps."""
    training, one = Training(12.0), StepsAhead(is_seen=True)
    waits, steps = training.run(40, 7)
    for part in range(0, 40, 5):
        one = one.after(waits[part : part + 5], steps[part : part + 5], 7)
    assert one.wanted >= 10


def test_a_single_pause_does_not_ask_for_many():
    waits, steps = np.zeros(12), np.ones(12)
    waits[3], steps[3] = 50.0, 51.0
    assert StepsAhead().after(waits, steps, LEAST).wanted <= 2
