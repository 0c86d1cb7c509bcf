"""What rank 0 sees of its job: in order, and harmless where an observer or the disk fails."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Decision, Plan
from hvd_dbs.job import observation as observation_module
from hvd_dbs.job.decision import Agreed, Received
from hvd_dbs.job.events import RankEvent
from hvd_dbs.job.journal import Journal
from hvd_dbs.job.observation import Observation
from hvd_dbs.job.observers import Observer, TensorBoard
from hvd_dbs.job.observers.observer import as_observer
from hvd_dbs.job.scores import SlowEvent
from tests.tf.given_rounds import JOB, SCORES, entry

EVEN = Plan((32, 32))
BOUNDS = Bounds.of(2, minimum=1)


def agreed(busy_seconds, plan=EVEN):
    """A round of 10 steps of two ranks."""
    known = np.array(busy_seconds)
    received = Received(np.array([32.0, 32.0]), known, np.zeros(2), float(known.max()))
    decision = Decision(plan, plan != EVEN, reason="why")
    return Agreed(EVEN, decision, None, 1, 10, received=received)


class Recorder(Observer):
    def __init__(self):
        self.seen = []

    def on_begin(self, job):
        self.seen.append(("begin", job))

    def on_round(self, entry, scores):
        self.seen.append(("round", entry.step, scores.against_own_best.tolist()))

    def on_event(self, event):
        self.seen.append(("event", event.rank, event.is_slow))

    def on_end(self):
        self.seen.append(("end",))


@pytest.fixture
def observation():
    return Observation(None)


def test_rounds_events_and_the_end_are_seen_in_order(observation, caplog):
    caplog.set_level(logging.INFO, "hvd_dbs")
    recorder, events = Recorder(), []
    observation.add(recorder)
    observation.add(as_observer(events.append))
    observation.begin(JOB)
    times = 4 * [(0.1, 0.1)] + 3 * [(0.1, 0.2)] + 4 * [(0.1, 0.1)]
    for number, busy_seconds in enumerate(times):
        observation.note(JOB, BOUNDS, agreed(busy_seconds), (0, number))
    observation.end()
    names = [one[0] for one in recorder.seen]
    assert names[0] == "begin" and names[-1] == "end" and names.count("round") == len(times)
    assert [one for one in recorder.seen if one[0] == "event"] == [
        ("event", 1, True),
        ("event", 1, False),
    ]
    fell = names.index("event")  # Two slow rounds of three.
    assert recorder.seen[fell - 1] == ("round", 5, [1.0, 0.5])
    slow, back = events
    assert (slow.rank, slow.host, slow.is_slow, slow.score) == (1, "node2", True, 0.5)
    assert slow.against_others == 0.5 and back.is_slow is False
    lines = [record for record in caplog.records if "its own best speed" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.WARNING, logging.INFO]
    assert lines[0].getMessage().startswith("epoch 0, step 5: rank 1 on node2 fell to 0.50 of its")


def test_other_ranks_have_other_best_speeds(observation):
    recorder = Recorder()
    observation.add(recorder)
    observation.begin(JOB)
    for step in range(4):
        observation.note(JOB, BOUNDS, agreed((0.1, 0.1)), (0, step))
    observation.change_ranks()
    observation.begin(JOB)
    for step in range(4):
        observation.note(JOB, BOUNDS, agreed((0.5, 0.5)), (1, step))
    observation.end()
    assert [one for one in recorder.seen if one[0] == "event"] == []
    assert recorder.seen.count(("begin", JOB)) == 2


def test_ranks_that_are_not_needed_are_named_once(observation, caplog):
    least = Bounds.of(2, minimum=32)
    for _ in range(2):
        observation.change_ranks()
        for number in range(5):
            observation.note(JOB, least, agreed((0.1, 0.9)), (0, number))  # It costs 0.7 s a step.
    observation.end()
    names = [text.partition(":")[0] for text in caplog.messages if "would be faster" in text]
    assert names == 2 * ["the job would be faster without rank 1 on node2"]


def test_an_observer_that_fails_is_named_once_and_the_others_go_on(observation, caplog):
    def fail(event):
        raise OSError("no route to the pager")

    class Broken(Observer):
        def on_round(self, entry, scores):
            raise ValueError("broken")

        def __repr__(self):
            return "Broken()"

    recorder = Recorder()
    for one in (Broken(), as_observer(fail), recorder):
        observation.add(one)
    observation.begin(JOB)
    for busy_seconds in 4 * [(0.1, 0.1)] + 3 * [(0.2, 0.2)]:
        observation.note(JOB, BOUNDS, agreed(busy_seconds), (0, 1))
    observation.end()
    assert [one[0] for one in recorder.seen].count("round") == 7
    warnings = [text for text in caplog.messages if "training goes on without it" in text]
    assert len(warnings) == 2
    assert any("the observer Broken()" in text and "broken" in text for text in warnings)
    assert any("no route to the pager" in text for text in warnings)


def test_an_observer_that_hangs_keeps_nobody_waiting(observation, caplog, monkeypatch):
    monkeypatch.setattr(observation_module, "_MOST_SECONDS_TO_WAIT", 0.05)
    monkeypatch.setattr(observation_module, "_MOST_WAITING", 3)
    released, was_seen = threading.Event(), threading.Semaphore(0)

    class Hangs(Observer):
        def on_round(self, entry, scores):
            released.wait(60)

    class Counts(Observer):
        def on_round(self, entry, scores):
            was_seen.release()

    observation.add(Hangs())
    observation.add(Counts())
    observation.begin(JOB)
    for step in range(8):
        observation.note(JOB, BOUNDS, agreed((0.1, 0.1)), (0, step))
        assert was_seen.acquire(timeout=30)
    observation.end()
    released.set()
    assert len([text for text in caplog.messages if "it hangs" in text]) == 1


def test_a_disk_that_does_not_answer_keeps_nobody_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(observation_module, "_MOST_SECONDS_TO_WAIT", 0.05)
    answers, was_seen = threading.Event(), threading.Semaphore(0)

    class Counts(Observer):
        def on_round(self, entry, scores):
            was_seen.release()

    class SlowJournal(Journal):
        def write(self, entry):
            answers.wait(60)
            super().write(entry)

    path = tmp_path / "run.jsonl"
    one = Observation(SlowJournal(path))
    one.add(Counts())
    one.begin(JOB)
    one.note(JOB, BOUNDS, agreed((0.1, 0.1)), (0, 4))
    assert was_seen.acquire(timeout=30)
    one.end()
    assert not path.exists()
    answers.set()
    monkeypatch.undo()
    one.end()
    assert len(path.read_text().splitlines()) == 2


def test_without_a_thread_nothing_is_written_and_the_training_goes_on(
    tmp_path, caplog, monkeypatch
):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(observation_module, "_MOST_SECONDS_TO_WAIT", 0.05)
    monkeypatch.setattr(threading.Thread, "start", start)
    one = Observation(Journal(tmp_path / "run.jsonl"))
    one.begin(JOB)
    one.end()
    assert not list(tmp_path.iterdir())
    assert 'goes on without it: RuntimeError("can\'t start new thread")' in caplog.text


def test_its_threads_end_with_it_after_what_was_asked_for():
    before, goes_on, seen = set(threading.enumerate()), threading.Event(), []

    class Waits(Observer):
        def on_begin(self, job):
            goes_on.wait(60)

        def on_round(self, entry, scores):
            seen.append(entry.step)

    for _ in range(3):
        one = Observation(None)
        one.add(Waits())
        one.begin(JOB)
        one.note(JOB, BOUNDS, agreed((0.1, 0.1)), (0, 7))
    del one
    assert set(threading.enumerate()) - before
    goes_on.set()
    limit = time.monotonic() + 60
    while (left := set(threading.enumerate()) - before) and time.monotonic() < limit:
        gc.collect()
        time.sleep(0.01)
    assert not left and seen == [7, 7, 7]


def test_what_is_no_observer_is_refused():
    for wrong in (None, 7, "logs", TensorBoard):
        with pytest.raises(TypeError, match="expected an observer, such as"):
            as_observer(wrong)
    recorder = Recorder()
    assert as_observer(recorder) is recorder


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"throttled_share": (0.0, 0.4)}, "CPU quota was used up 40 % of the time"),
        ({"input_seconds": (0.0, 0.125)}, "waits for its data 50 % of its work"),
        ({"page_faults": (0.0, 50_000.0)}, "50000 page faults a step"),
        ({"cpu_load": (0.0, 0.5)}, "other processes use 50 % of its host's processors"),
        ({"throttled_share": (0.4, 0.0), "cpu_load": (0.9, 0.0)}, "no cause is known"),
        ({"throttled_share": (math.nan, math.nan)}, "other processes use 50 %"),
    ],
)
def test_an_event_names_its_causes(changes, cause):
    one = RankEvent.of(SlowEvent(1, True, 0.5), entry(**changes), SCORES, JOB.hosts)
    assert cause in one.text
    back = RankEvent.of(SlowEvent(1, False, 0.9), entry(**changes), SCORES, JOB.hosts)
    assert cause not in back.text and "has recovered: 0.90" in back.text


def test_ranks_on_one_host_are_no_cause_for_each_other():
    one = RankEvent.of(SlowEvent(1, True, 0.5), entry(), SCORES, ("node1", "node1"))
    assert "no cause is known" in one.text
