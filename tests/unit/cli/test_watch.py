"""`hvd-dbs watch` on journals that are written meanwhile."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

from hvd_dbs.cli.main import main
from hvd_dbs.cli.watch.follower import MOST_ROUNDS, Follower
from hvd_dbs.cli.watch.view import view
from hvd_dbs.job.journal_entries import JobEntry
from tests.journals import simulated, written

JOB = simulated("slow rank", rounds=6)
QUICK = ("--every", "0.1", "--idle", "0.5")


def watch(path, *options):
    return CliRunner().invoke(main, ["watch", str(path), *options])


def epochs(follower):
    return [entry.epoch for entry in follower.part.rounds]


def rendered(part, num_ranks=10, unicode=True):
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(view(part, num_ranks, unicode))
    return console.export_text()


def test_only_what_is_new_is_read(tmp_path):
    path = tmp_path / "run.jsonl"
    follower = Follower(path)
    assert not follower.read() and follower.part is None
    written(path, JOB.job, *JOB.rounds[:2])
    assert follower.read() and epochs(follower) == [0, 1]
    assert not follower.read()
    line = written(tmp_path / "other.jsonl", JOB.job, JOB.rounds[2]).read_text().splitlines()[1]
    with path.open("a") as file:
        file.write(line[:50])
    assert follower.read() and len(follower.part.rounds) == 2  # Not whole yet.
    with path.open("a") as file:
        file.write(f"{line[50:]}\ndamaged\n")
    assert follower.read() and epochs(follower) == [0, 1, 2]


def test_a_new_part_and_a_new_file_begin_anew(tmp_path):
    path = written(tmp_path / "run.jsonl", JOB.job, *JOB.rounds)
    follower = Follower(path)
    follower.read()
    written(path, replace(JOB.job, strategy="dbs"), JOB.rounds[0])
    follower.read()
    assert follower.part.job.strategy == "dbs" and len(follower.part.rounds) == 1
    path.replace(tmp_path / "run.jsonl.1")  # As a journal does that has grown large.
    written(path, JOB.job, *JOB.rounds, *JOB.rounds)  # Longer than what was read.
    follower.read()
    assert follower.part.job.strategy == "even" and len(follower.part.rounds) == 12


def test_rounds_of_another_job_are_left_out(tmp_path):
    path = written(tmp_path / "run.jsonl", JobEntry(("a", "b"), "even", 64), *JOB.rounds)
    follower = Follower(path)
    follower.read()
    assert follower.part is None


def test_the_view_has_the_verdict_and_a_row_for_each_rank():
    text = rendered(JOB)
    assert "Rank 3 on b holds the job back: it takes 2.5 times as long" in text
    (row,) = re.findall(r"^3 +b .*$", text, re.MULTILINE)
    assert "█" * 23 in row and "0.40" in row
    (row,) = re.findall(r"^0 +a .*$", text, re.MULTILINE)
    assert "█" * 9 + "░" * 14 in row.replace("█" * 10, "█" * 9 + "░")
    few = rendered(JOB, num_ranks=2)
    assert "the 2 slowest of 6 ranks" in few and len(re.findall(r"^\d +[abc] ", few, re.M)) == 2


def test_the_view_shows_of_how_many_rounds_it_is():
    assert "epochs 0 to 5, 6 rounds, 0 changes" in rendered(JOB)
    rounds = [replace(JOB.rounds[0], epoch=epoch) for epoch in range(100, 100 + MOST_ROUNDS)]
    long = rendered(replace(JOB, rounds=tuple(rounds)))
    assert f"epochs 100 to 499, the newest {MOST_ROUNDS} rounds, 0 changes" in long


def test_a_terminal_of_ascii_gets_ascii():
    assert rendered(JOB, unicode=False).isascii()


def test_where_little_is_known_there_is_a_view_too():
    nan = float("nan")
    rounds = [replace(JOB.rounds[0], busy_seconds=(nan,) * 6, step_seconds=nan)]
    assert "No verdict: no round has measured a step yet." in rendered(replace(JOB, rounds=rounds))


def test_a_journal_that_does_not_come_is_said_in_time(tmp_path):
    result = watch(tmp_path / "none.jsonl", "--wait", "0.3", *QUICK)
    assert result.exit_code == 2
    assert "Waiting for the first round in" in result.output
    assert "none.jsonl does not exist after 0.3 s; expected the file of" in result.output
    (tmp_path / "other").write_text("hello\n")
    result = watch(tmp_path / "other", "--wait", "0.3", *QUICK)
    assert result.exit_code == 2 and "has no round of a job after 0.3 s" in result.output
    result = watch(tmp_path / "other", "--every", "inf")
    assert result.exit_code == 2 and "inf is not in the range" in result.output
    (tmp_path / "folder").mkdir()
    result = watch(tmp_path / "folder", "--wait", "0.3", *QUICK)
    assert result.exit_code == 2


def test_a_job_is_followed_from_before_its_start_to_its_end(tmp_path):
    path = tmp_path / "run.jsonl"

    def job():
        for number, entry in enumerate(JOB.rounds):
            time.sleep(0.2)
            written(path, *([] if number else [JOB.job]), entry)

    thread = threading.Thread(target=job)
    thread.start()
    result = watch(path, "--wait", "30", "--every", "0.1", "--idle", "2")
    thread.join()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith("Waiting for the first round in")
    rounds = [line for line in lines if line.startswith("epoch ")]
    assert [line.split(",")[0] for line in rounds] == [f"epoch {number}" for number in range(6)]
    assert lines[-1] == (
        "No round was written to run.jsonl for 2 s: the job has ended or stands still."
    )


def test_all_rounds_of_a_new_part_are_listed(tmp_path):
    path = written(tmp_path / "run.jsonl", JOB.job, *JOB.rounds[:2])
    # Between two looks a part may end, as that of an elastic job, and another begin.
    new = [JOB.rounds[2], JOB.job, *JOB.rounds[3:5], JOB.job, JOB.rounds[5]]
    thread = threading.Timer(0.5, written, [path, *new])
    thread.start()
    result = watch(path, "--every", "0.1", "--idle", "2")
    thread.join()
    rounds = [line for line in result.output.splitlines() if line.startswith("epoch ")]
    assert [line.split(",")[0] for line in rounds] == [f"epoch {number}" for number in range(6)]


def test_who_reads_may_have_seen_enough(tmp_path):
    path = written(tmp_path / "run.jsonl", JOB.job, *JOB.rounds)
    nobody, ours = os.pipe()
    os.close(nobody)
    command = [sys.executable, "-m", "hvd_dbs.cli.main", "watch", str(path), *QUICK]
    done = subprocess.run(command, check=False, stdout=ours, stderr=subprocess.PIPE, text=True)
    os.close(ours)
    assert (done.returncode, done.stderr) == (1, "")  # As other programs: `| head` is no error.


@pytest.mark.parametrize("end", ["interrupt", "idle"])
def test_in_a_terminal_it_is_updated_in_place(tmp_path, end):
    path = written(tmp_path / "run.jsonl", JOB.job, *JOB.rounds)
    ours, theirs = pty.openpty()
    idle = "60" if end == "interrupt" else "1"
    process = subprocess.Popen(
        [sys.executable, "-m", "hvd_dbs.cli.main", "watch", str(path), "--idle", idle],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 50
    while b"since the last round" not in seen and time.monotonic() < deadline:
        seen += os.read(ours, 65536)
    if end == "interrupt":
        process.send_signal(signal.SIGINT)
    try:
        while piece := os.read(ours, 65536):
            seen += piece
    except OSError:  # The other end was closed.
        pass
    assert process.wait(30) == 0
    os.close(ours)
    assert b"Rank 3 on b holds the job back" in seen and b"Traceback" not in seen
    assert (b"the job has ended or stands still" in seen) == (end == "idle")
