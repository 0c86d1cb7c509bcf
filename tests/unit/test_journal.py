"""The journal: what is written is read again, also by other versions."""

from __future__ import annotations

import json
import math

from hvd_dbs.comm.links import Link
from hvd_dbs.job.journal import Journal, read_journal
from hvd_dbs.job.journal_entries import JobEntry
from tests.journals import JOB, a_round, written


def test_what_is_written_is_read_again(tmp_path):
    path = written(tmp_path / "run.jsonl", JOB, a_round(), a_round(8, plan=(32, 32), steps_ahead=3))
    parts, num_damaged = read_journal(path)
    assert num_damaged == 0
    assert [(part.job, part.rounds) for part in parts] == [
        (JOB, (a_round(), a_round(8, plan=(32, 32), steps_ahead=3)))
    ]
    assert [entry.changed for entry in parts[0].rounds] == [True, False]
    for line in path.read_text().splitlines():
        assert json.loads(line)["entry"] in ("job", "round")


def test_what_is_unknown_is_null_in_the_file_and_nan_again(tmp_path):
    given = a_round(
        busy_seconds=(math.nan, 0.5),
        cpu_load=(math.nan, math.inf),
        step_seconds=math.nan,
        predicted_seconds=(math.nan, math.nan),
    )
    path = written(tmp_path / "run.jsonl", JOB, given)
    assert json.loads(path.read_text().splitlines()[1])["busy_seconds"] == [None, 0.5]
    read = read_journal(path)[0][0].rounds[0]
    assert math.isnan(read.busy_seconds[0]) and read.busy_seconds[1] == 0.5
    unknown = (*read.cpu_load, read.step_seconds, *read.predicted_seconds)
    assert all(math.isnan(value) for value in unknown)


def test_communication_is_read_again_and_older_journals_have_none(tmp_path):
    measured = {
        "first_bucket_seconds": (0.0625, math.nan),
        "overlap_seconds": 0.0,  # One bucket.
        "last_bucket_seconds": 0.03125,
        "negotiation_seconds": 0.001,
    }
    path = written(tmp_path / "run.jsonl", JOB, a_round(**measured))
    read = read_journal(path)[0][0].rounds[0]
    assert read.first_bucket_seconds[0] == 0.0625 and math.isnan(read.first_bucket_seconds[1])
    assert (read.overlap_seconds, read.last_bucket_seconds) == (0.0, 0.03125)
    assert read.negotiation_seconds == 0.001
    older = json.loads(path.read_text().splitlines()[1])
    for name in measured:
        del older[name]
    (tmp_path / "older.jsonl").write_text(
        path.read_text().splitlines()[0] + "\n" + json.dumps(older) + "\n"
    )
    read = read_journal(tmp_path / "older.jsonl")[0][0].rounds[0]
    assert read.first_bucket_seconds == () and math.isnan(read.overlap_seconds)
    wrong = a_round(first_bucket_seconds=(0.1, 0.1, 0.1), overlap_seconds=-1.0)
    assert read_journal(written(path, wrong))[1] == 1


def test_causes_are_read_again_and_older_journals_have_none(tmp_path):
    causes = {
        "input_seconds": (0.0, math.nan),
        "throttled_share": (0.5, 0.0),
        "page_faults": (12.5, 0.0),
        "quartile_seconds": (0.1, math.nan),
    }
    path = written(tmp_path / "run.jsonl", JOB, a_round(), a_round(**causes))
    assert json.loads(path.read_text().splitlines()[2])["input_seconds"] == [0.0, None]
    older, read = read_journal(path)[0][0].rounds
    assert read.input_seconds[0] == 0.0 and math.isnan(read.input_seconds[1])
    assert (read.throttled_share, read.page_faults) == ((0.5, 0.0), (12.5, 0.0))
    assert read.quartile_seconds[0] == 0.1
    assert all(getattr(older, name) == () for name in causes)
    for name in causes:
        assert read_journal(written(path, a_round(**{name: (0.5,)})))[1] == 1
        path = written(tmp_path / f"{name}.jsonl", JOB, a_round())


def test_a_journal_stays_below_twice_its_most_bytes(tmp_path):
    path = tmp_path / "run.jsonl"
    journal = Journal(path, most_bytes=4000)
    journal.write(JOB)
    for step in range(60):
        journal.write(a_round(step))
    older = tmp_path / "run.jsonl.1"
    assert path.stat().st_size < 4500 and older.stat().st_size < 4500
    assert sorted(tmp_path.iterdir()) == [path, older]
    before, now = (read_journal(one)[0] for one in (older, path))
    assert [part.job for part in before + now] == [JOB, JOB]
    steps = [entry.step for part in before + now for entry in part.rounds]
    assert steps == list(range(steps[0], 60))  # Nothing is lost where one ends.


def test_a_journal_that_is_taken_away_begins_with_its_job_again(tmp_path):
    path = tmp_path / "run.jsonl"
    journal = Journal(path)
    for entry in (JOB, a_round(1)):
        journal.write(entry)
    path.unlink()
    journal.write(a_round(2))
    ((part,), num_damaged) = read_journal(path)
    assert (part.job, part.rounds, num_damaged) == (JOB, (a_round(2),), 0)


def test_what_later_versions_add_is_left_out(tmp_path):
    path = written(tmp_path / "run.jsonl", JOB)
    with path.open("a") as file:
        file.write('{"entry": "weather", "is_fine": true}\n')
    path = written(path, a_round())
    line = json.loads(path.read_text().splitlines()[-1])
    path.write_text(path.read_text() + json.dumps({**line, "weather": "fine"}) + "\n")
    ((part,), num_damaged) = read_journal(path)
    assert part.rounds == (a_round(), a_round()) and num_damaged == 0
    assert (part.job.version, JobEntry.of({**vars(JOB), "version": 3}).version) == (2, 3)
    first = path.read_text().splitlines()[0].replace('"version": 2, ', "")
    path.write_text("\n".join([first, *path.read_text().splitlines()[1:]]))
    assert read_journal(path)[0][0].job.version == 1


def test_links_are_read_again(tmp_path):
    links = (Link("a", "b", 12e6, 0.02), Link("b", "a", 13e6, math.nan))
    path = written(tmp_path / "run.jsonl", JOB, a_round(links=links))
    (read,) = read_journal(path)[0][0].rounds
    assert read.links[0] == links[0]
    assert (read.links[1].source, read.links[1].bytes_per_second) == ("b", 13e6)
    assert math.isnan(read.links[1].round_trip_seconds)


def test_journals_from_before_links_were_measured_are_read(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(
        '{"entry": "job", "hosts": ["a", "b"], "strategy": "dbs", "global_batch_size": 64, '
        '"time": 1.5}\n'
        '{"entry": "round", "epoch": 0, "step": 4, "batch_sizes": [32, 32], "busy_seconds": '
        '[0.1, 0.2], "cpu_load": [0.0, null], "step_seconds": 0.2, "plan_before": [32, 32], '
        '"plan": [43, 21], "reason": "why", "predicted_seconds": [0.2, 0.1], "time": 2.5}\n'
    )
    (part,), num_damaged = read_journal(path)
    assert num_damaged == 0
    assert part.rounds[0].links == () and part.rounds[0].plan == (43, 21)


def test_what_no_step_can_take_is_unknown(tmp_path):
    path = written(tmp_path / "run.jsonl", JOB, a_round(busy_seconds=(0.0, -1.0), step_seconds=0.0))
    read = read_journal(path)[0][0].rounds[0]
    assert all(math.isnan(value) for value in (*read.busy_seconds, read.step_seconds))


def test_a_job_that_starts_again_goes_on_behind_what_is_there(tmp_path):
    other = JobEntry(("a",), "dbs", 64)
    alone = {"batch_sizes": (64,), "plan_before": (64,), "plan": (64,)}
    alone |= {"busy_seconds": (0.5,), "cpu_load": (0.0,)}
    path = written(tmp_path / "run.jsonl", JOB, a_round(), a_round(8))
    written(path, JOB)  # Ended before its first round.
    written(path, other, a_round(**alone))
    parts, num_damaged = read_journal(path)
    assert [(part.job, len(part.rounds)) for part in parts] == [(JOB, 2), (other, 1)]
    assert num_damaged == 0


def test_a_journal_stays_where_it_was_begun(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    journal = Journal("run.jsonl")
    monkeypatch.chdir(tmp_path / "other")
    journal.write(JOB)
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == ["run.jsonl"]
    assert (tmp_path / "run.jsonl").exists()
