"""`hvd-dbs simulate --replay`: what a job had, what others would have had, and clear errors."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hvd_dbs.cli.main import main
from hvd_dbs.cli.simulate import replay
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from tests.journals import written

JOB = JobEntry(("a", "b"), "even", 64)


def a_round(epoch, **changes):
    """Of an even job: rank 1 takes three times as long, and 5 ms of a step are neither's work."""
    fields = {
        "epoch": epoch,
        "step": 20,
        "batch_sizes": (32, 32),
        "busy_seconds": (0.032, 0.096),
        "cpu_load": (0.0, 0.0),
        "step_seconds": 0.101,
        "plan_before": (32, 32),
        "plan": (32, 32),
        "reason": "kept",
        "predicted_seconds": (0.101, 0.101),
        "num_steps": 20,
    }
    return RoundEntry(**{**fields, **changes})


def run(*arguments):
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def test_a_job_and_what_others_would_have_had(tmp_path):
    path = written(tmp_path / "run.jsonl", JOB, *(a_round(epoch) for epoch in range(8)))
    figures = tmp_path / "figures.json"
    result = run("--replay", path, "--strategy", "even", "--strategy", "dbs", "--json", figures)
    assert result.exit_code == 0, result.output
    assert "2 ranks, global batch 64, even; 8 rounds, 160 steps" in result.output
    assert "The job had 101.0 ms a step, 101.0 ms in its second half." in result.output
    rows = [line.split("|")[1:-1] for line in result.output.splitlines() if line.startswith("|")]
    even, dbs = ([cell.strip() for cell in row] for row in rows[2:])
    assert even[0] == "even (the job's)" and even[5] == "no"
    assert float(even[1]) == pytest.approx(101, rel=0.02)
    # 48 and 16 samples by their speeds, were all of it proportional: 48 + 5 ms.
    assert dbs[0] == "dbs"
    assert float(dbs[2]) == pytest.approx(56, rel=0.05)
    assert "times, rank 1" in dbs[5]
    assert "communication and the rest 5.0 ms" in result.output
    assert [one["strategy"] for one in json.loads(figures.read_text())["runs"]] == ["even", "dbs"]


def test_the_newest_rounds_of_a_long_journal_are_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "_MOST_ROUNDS", 3)
    slow = [a_round(epoch, busy_seconds=(9.0, 9.0), step_seconds=9.0) for epoch in range(5)]
    path = written(tmp_path / "run.jsonl", JOB, *slow, *(a_round(epoch) for epoch in (5, 6, 7)))
    result = run("--replay", path, "--strategy", "even")
    assert "even; the newest 3 of 8 rounds, 60 steps" in result.output
    assert "The job had 101.0 ms a step" in result.output


def test_a_cut_line_is_left_out_and_said(tmp_path):
    path = written(tmp_path / "run.jsonl", JOB, a_round(0), a_round(1))
    path.write_text(path.read_text() + '{"entry": "round", "epo')
    result = run("--replay", path, "--strategy", "even")
    assert result.exit_code == 0
    assert "2 rounds" in result.output and "1 damaged line of the journal was" in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no round of a job; expected the file that a balancer was given"),
        ("device,batch_size\n", "has no round of a job"),
        ('{"entry": "round", "epo', "has no round of a job"),
        (json.dumps({"entry": "job", "hosts": ["a"], "strategy": "dbs"}), "no round of a job"),
    ],
)
def test_what_is_no_journal_is_an_error(tmp_path, text, message):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    result = run("--replay", path)
    assert result.exit_code == 2
    assert message in result.output


def test_rounds_without_their_steps_are_an_error(tmp_path):
    path = written(tmp_path / "run.jsonl", JOB, a_round(0), a_round(1, num_steps=0))
    result = run("--replay", path)
    assert result.exit_code == 2
    assert "run.jsonl: round 2 does not say how many steps it is of" in result.output


def test_a_job_without_a_decision_and_a_rank_without_times_are_errors(tmp_path):
    result = run("--replay", written(tmp_path / "begun.jsonl", JOB))
    assert result.exit_code == 2 and "has not come to a decision yet" in result.output
    silent = a_round(0, busy_seconds=(0.03, float("nan")))
    result = run("--replay", written(tmp_path / "silent.jsonl", JOB, silent))
    assert result.exit_code == 2
    assert "rank 1 has no usable busy_seconds in any of the 1 rounds" in result.output
    assert run("--replay", tmp_path / "none.jsonl").exit_code == 2


@pytest.mark.parametrize("other", [["--suite"], ["--prediction"], ["--global-batch-size", "8"]])
def test_what_does_not_go_together(tmp_path, other):
    path = written(tmp_path / "run.jsonl", JOB, a_round(0))
    result = run("--replay", path, *other)
    assert result.exit_code == 2 and "--replay" in result.output
