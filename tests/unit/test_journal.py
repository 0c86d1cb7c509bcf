"""The journal: what is written is read again, from damaged files and beside failing disks too."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace

import pytest

from hvd_dbs.comm.links import Link
from hvd_dbs.job.journal import Journal, read_journal
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from tests.journals import written

JOB = JobEntry(("a", "b"), "dbs", 64)


def a_round(step=4, **changes):
    fields = {
        "epoch": 1,
        "step": step,
        "batch_sizes": (32, 32),
        "busy_seconds": (0.125, 0.25),
        "cpu_load": (0.0, 0.5),
        "step_seconds": 0.25,
        "plan_before": (32, 32),
        "plan": (43, 21),
        "reason": "rank 1 was slowest",
        "predicted_seconds": (0.25, 0.1875),
    }
    return RoundEntry(**{**fields, **changes})


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


@pytest.mark.parametrize(
    "line",
    [
        '{"entry": "round", "epoch": 1, "ste',
        "\x00\x00",
        "[1, 2]",
        "7",
        '{"entry": "round"}',
        json.dumps({"entry": "job", "hosts": 3, "strategy": "dbs"}),
        json.dumps(
            {"entry": "job", "hosts": [], "strategy": "", "global_batch_size": 1, "time": 1.0}
        ),
        '{"entry": "job", "hosts": ["a"], "strategy": "", "global_batch_size": 1e999, "time": 1.0}',
        '{"entry": "job", "hosts": ["a"], "strategy": "", "global_batch_size": 1, "time": null}',
        "[" * 100_000,
    ],
)
def test_damaged_lines_are_counted_and_left_out(tmp_path, line):
    path = written(tmp_path / "run.jsonl", JOB, a_round())
    with path.open("a") as file:
        file.write(f"{line}\n")
    written(path, a_round(8))
    parts, num_damaged = read_journal(path)
    assert [entry.step for entry in parts[0].rounds] == [4, 8]
    assert num_damaged == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": (1, 2, 61)},
        {"busy_seconds": (0.1, 0.2, 0.3)},
        {"cpu_load": (0.1,)},
        {"batch_sizes": ()},
        {"plan": (43, 22)},  # Another global batch size.
        {"plan": (-1, 65)},
        {"plan": (32.0, 32.0)},
        {"plan": (10**30, 64 - 10**30)},
        {"epoch": -1},
        {"reason": None},
        {"time": 7},
        {"links": (Link("a", "b", -1.0, 0.0),)},
        {"links": (Link("a", 3, 1.0, 0.0),)},
        {"links": 3},
    ],
)
def test_a_round_that_cannot_be_is_damaged(tmp_path, changes):
    path = written(tmp_path / "run.jsonl", JOB, a_round(), a_round(8, **changes))
    parts, num_damaged = read_journal(path)
    assert len(parts[0].rounds) == num_damaged == 1


def test_what_is_no_journal_is_said(tmp_path):
    path = tmp_path / "other.txt"
    path.write_text("hello\n")
    with pytest.raises(ValueError, match=r"other\.txt has no round of a job; expected the file"):
        read_journal(path)
    with pytest.raises(ValueError, match=r"run\.jsonl: the job has not come to a decision yet"):
        read_journal(written(tmp_path / "run.jsonl", JOB))
    with pytest.raises(ValueError, match="missing cannot be read: No such file"):
        read_journal(tmp_path / "missing")


def test_a_full_disk_is_said_once_and_harms_nothing(caplog):
    with caplog.at_level(logging.WARNING, "hvd_dbs"):
        written("/dev/full", JOB, a_round(), a_round(8))
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "cannot write to the journal /dev/full, so entries are missing in it"
    ]


def test_behind_a_gap_the_journal_goes_on(tmp_path, caplog):
    path = tmp_path / "later" / "run.jsonl"
    journal = Journal(path)
    journal.write(JOB)
    path.parent.mkdir()
    path.write_text('{"entry": "round", "epo')  # Cut short by a disk that was full.
    journal.write(JOB)
    journal.write(a_round())
    parts, num_damaged = read_journal(path)
    assert (len(parts), num_damaged, len(caplog.records)) == (1, 1, 1)


def test_rounds_after_a_gap_are_of_their_own_job(tmp_path):
    """The disk was full when it began, not when the job before it ended."""
    path, away = tmp_path / "run.jsonl", tmp_path / "away"
    written(path, JOB, a_round())
    path.rename(away)
    path.mkdir()  # Nothing can be written to it.
    journal = Journal(path)
    journal.write(replace(JOB, strategy="even"))
    path.rmdir()
    away.rename(path)
    journal.write(a_round(8))
    journal.write(a_round(12))
    parts, num_damaged = read_journal(path)
    assert [(part.job.strategy, len(part.rounds)) for part in parts] == [("dbs", 1), ("even", 2)]
    assert num_damaged == 0


def test_a_file_that_cannot_be_renamed_has_its_job_once(tmp_path):
    path = tmp_path / "run.jsonl"
    (tmp_path / "run.jsonl.1" / "in the way").mkdir(parents=True)
    journal = Journal(path, most_bytes=1)
    for entry in (JOB, a_round(), a_round(8)):
        journal.write(entry)
    (part,), num_damaged = read_journal(path)
    assert (len(part.rounds), num_damaged) == (2, 0)


def test_a_new_job_goes_on_behind_a_line_that_was_cut_short(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"entry": "round", "epo')
    Journal(path).check()
    written(path, JOB, a_round())
    parts, num_damaged = read_journal(path)
    assert (len(parts), num_damaged) == (1, 1)
    assert "" not in written(tmp_path / "new.jsonl", JOB, a_round()).read_text().splitlines()


def test_whatever_cannot_be_written_ends_no_training(tmp_path, caplog):
    path = written(tmp_path / "run.jsonl", JOB, a_round(reason=object()), a_round(8))
    assert [entry.step for entry in read_journal(path)[0][0].rounds] == [8]
    assert len(caplog.records) == 1


def test_a_journal_stays_where_it_was_begun(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    journal = Journal("run.jsonl")
    monkeypatch.chdir(tmp_path / "other")
    journal.write(JOB)
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == ["run.jsonl"]
    assert (tmp_path / "run.jsonl").exists()


def test_a_file_that_cannot_be_written_is_an_error_before_the_training(tmp_path):
    Journal(tmp_path / "run.jsonl").check()
    path = tmp_path / "missing" / "run.jsonl"
    with pytest.raises(ValueError, match=r"run\.jsonl' cannot be written to: No such file"):
        Journal(path).check()
    other = tmp_path / "notes.txt"
    other.write_text("important = 1\n")
    with pytest.raises(ValueError, match=r"holds something else, which begins with 'important"):
        Journal(other).check()
    Journal(written(tmp_path / "run.jsonl", JOB, a_round())).check()
    with pytest.raises(TypeError, match=r"journal=True; expected the path of a file"):
        Journal(True)
    with pytest.raises(ValueError, match=r"journal='' is empty; expected the path of a file"):
        Journal("")
