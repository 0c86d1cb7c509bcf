"""Journals with damaged lines, and those beside failing disks, are read and go on."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from hvd_dbs.comm.links import Link
from hvd_dbs.job.journal import Journal, read_journal
from tests.journals import JOB, a_round, written


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
