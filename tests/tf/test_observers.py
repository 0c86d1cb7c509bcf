"""What follows a job on rank 0: called in order, harmless where it fails, gone after the job."""

from __future__ import annotations

import logging
import math
import socket
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util.event_pb2 import Event

from hvd_dbs.balancing import Bounds, Decision, Plan
from hvd_dbs.job import observation as observation_module
from hvd_dbs.job.decision import Agreed, Received
from hvd_dbs.job.events import RankEvent
from hvd_dbs.job.journal import Journal
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.job.observation import Observation
from hvd_dbs.job.observers import Observer, Prometheus, TensorBoard
from hvd_dbs.job.observers.observer import as_observer
from hvd_dbs.job.scores import RankScores, SlowEvent, scores_of
from tests.jobs import python, run_job

JOB = JobEntry(("node1", "node2"), "even", 64)
EVEN = Plan((32, 32))
BOUNDS = Bounds.of(2, minimum=1)


def agreed(busy_seconds, plan=EVEN):
    """A round of 10 steps of two ranks."""
    known = np.array(busy_seconds)
    received = Received(np.array([32.0, 32.0]), known, np.zeros(2), float(known.max()))
    decision = Decision(plan, plan != EVEN, reason="why")
    return Agreed(EVEN, decision, None, 1, 10, received=received)


def entry(**changes):
    fields = {
        "epoch": 1,
        "step": 4,
        "batch_sizes": (32, 32),
        "busy_seconds": (0.125, 0.25),
        "cpu_load": (math.nan, 0.5),
        "step_seconds": 0.25,
        "plan_before": (32, 32),
        "plan": (43, 21),
        "reason": "rank 1 was slowest",
        "predicted_seconds": (0.25, 0.1875),
        "num_steps": 10,
    }
    return RoundEntry(**{**fields, **changes})


SCORES = scores_of(2, 3 * [((32, 32), (0.125, 0.25))])


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


class TestPrometheus:
    def scrape(self, port, path="/metrics"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return answer.read().decode()

    def test_a_scrape_has_the_last_round_and_the_port_is_closed_at_the_end(self):
        one = Prometheus(port=0)
        assert one.port is None
        one.on_begin(JobEntry(("node1", 'no"de\\2'), "even", 64))
        port = one.port
        try:
            assert self.scrape(port) == ""  # No round is over.
            one.on_round(entry(), SCORES)
            one.on_round(entry(events=(SlowEvent(1, True, 0.5),), plan=(32, 32)), SCORES)
            lines = self.scrape(port).splitlines()
            with pytest.raises(urllib.error.HTTPError):
                self.scrape(port, "/")
        finally:
            one.on_end()
        assert "# TYPE hvd_dbs_efficiency gauge" in lines
        assert "hvd_dbs_efficiency 0.75" in lines
        assert 'hvd_dbs_rank_busy_seconds{rank="0",host="node1"} 0.125' in lines
        assert r'hvd_dbs_rank_busy_seconds{rank="1",host="no\"de\\2"} 0.25' in lines
        assert not any(line.startswith('hvd_dbs_rank_cpu_load{rank="0"') for line in lines)
        assert "hvd_dbs_steps_total 20" in lines and "hvd_dbs_plan_changes_total 1" in lines
        assert "hvd_dbs_slow_ranks_total 1" in lines
        helped = [line.split()[2] for line in lines if line.startswith("# HELP")]
        assert len(set(helped)) == len(helped)  # Prometheus refuses a second one.
        assert one.port is None
        with pytest.raises(urllib.error.URLError):
            self.scrape(port)

    def test_it_listens_on_loopback_alone(self):
        one = Prometheus(port=0)
        one.on_begin(JOB)
        try:
            assert one._server.server_address[0] == "127.0.0.1"
        finally:
            one.on_end()

    def test_a_port_in_use_is_a_warning(self, caplog):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            one = Prometheus(port=port)
            one.on_begin(JOB)
            one.on_round(entry(), SCORES)
            one.on_end()
        (warning,) = caplog.messages
        assert f"at 127.0.0.1:{port}: Address already in use" in warning

    def test_a_file_is_whole_and_gone_at_the_end(self, tmp_path):
        path = tmp_path / "hvd_dbs.prom"
        one = Prometheus(file=path)
        one.on_begin(JOB)
        one.on_round(entry(), SCORES)
        assert path.read_text().endswith("hvd_dbs_slow_ranks_total 0\n")
        assert list(tmp_path.iterdir()) == [path]
        one.on_end()
        assert list(tmp_path.iterdir()) == []

    def test_a_file_is_gone_where_a_training_ended_by_an_exception(self, tmp_path):
        path = tmp_path / "hvd_dbs.prom"
        script = (
            "from hvd_dbs.job.observers.prometheus import Prometheus\n"
            "from hvd_dbs.job.scores import RankScores\n"
            "from tests.journals import simulated\n"
            "job = simulated('slow rank', rounds=2)\n"
            f"one = Prometheus(file={str(path)!r})\n"
            "one.on_begin(job.job)\n"
            "one.on_round(job.rounds[0], RankScores.of(6))\n"
            f"assert open({str(path)!r}).read()\n"
            "raise ArithmeticError\n"
        )
        done = run_job(python("-c", script), timeout=60)
        assert "ArithmeticError" in done.output and not path.exists()

    def test_arguments_are_checked(self):
        with pytest.raises(ValueError, match="neither a port nor a file"):
            Prometheus()
        with pytest.raises(ValueError, match="port=70000 is no port"):
            Prometheus(port=70_000)


class TestTensorBoard:
    def events(self, folder):
        """(step, tag, plugin, value) of all that was written."""
        seen = []
        for path in sorted(folder.iterdir()):
            for record in tf.data.TFRecordDataset(str(path)):
                event = Event.FromString(record.numpy())
                for one in event.summary.value:
                    value = tf.make_ndarray(one.tensor).item()
                    plugin = one.metadata.plugin_data.plugin_name
                    seen.append((event.step, one.tag, plugin, value))
        return seen

    def test_rounds_are_scalars_plans_and_events_texts(self, tmp_path):
        one = TensorBoard(tmp_path / "logs")
        one.on_begin(JOB)
        one.on_round(entry(), SCORES)
        one.on_event(RankEvent.of(SlowEvent(1, True, 0.5), entry(), SCORES, JOB.hosts))
        one.on_end()
        one.on_begin(JOB)  # Another fit.
        one.on_round(entry(plan=(32, 32)), SCORES)
        one.on_end()
        seen = self.events(tmp_path / "logs")
        assert (10, "hvd_dbs/efficiency", "scalars", 0.75) in seen
        assert (20, "hvd_dbs/efficiency", "scalars", 0.75) in seen
        assert (10, "hvd_dbs_batch_size/rank_1", "scalars", 32.0) in seen
        assert "hvd_dbs_cpu_load/rank_0" not in {tag for _, tag, _, _ in seen}  # Unknown.
        texts = [(step, tag, value) for step, tag, plugin, value in seen if plugin == "text"]
        assert texts[0] == (10, "hvd_dbs/plans", b"[43, 21]: rank 1 was slowest")
        assert texts[1][1] == "hvd_dbs/events" and b"fell to 0.50" in texts[1][2]
        assert len(texts) == 2

    def test_of_many_ranks_three_lines_are_drawn(self, tmp_path):
        size = 100
        row = tuple(float(rank) for rank in range(size))
        one = TensorBoard(tmp_path)
        one.on_begin(JobEntry(("a",) * size, "even", 64))
        rows = {"batch_sizes": (1,) * size, "busy_seconds": row, "cpu_load": (math.nan,) * size}
        one.on_round(entry(**rows), RankScores.of(size))
        one.on_end()
        lines = {tag: value for _, tag, _, value in self.events(tmp_path) if "busy_seconds" in tag}
        assert lines == {
            "hvd_dbs_busy_seconds/least": 0.0,
            "hvd_dbs_busy_seconds/median": 49.5,
            "hvd_dbs_busy_seconds/most": 99.0,
        }
