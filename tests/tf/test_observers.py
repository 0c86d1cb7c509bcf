"""What comes with the package to follow a job on rank 0: right figures, gone after the job."""

from __future__ import annotations

import math
import socket
import urllib.error
import urllib.request

import pytest
import tensorflow as tf
from tensorflow.core.util.event_pb2 import Event

from hvd_dbs.job.events import RankEvent
from hvd_dbs.job.journal_entries import JobEntry
from hvd_dbs.job.observers import Prometheus, TensorBoard
from hvd_dbs.job.scores import RankScores, SlowEvent
from tests.jobs import python, run_job
from tests.tf.given_rounds import JOB, SCORES, entry


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
        with pytest.raises(TypeError, match="port='9464' is a str"):
            Prometheus(port="9464")


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
