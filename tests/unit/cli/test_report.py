"""`hvd-dbs report` on journals whose answers are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hvd_dbs.cli.main import main
from hvd_dbs.comm.links import Link
from hvd_dbs.job.journal import Journal
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry

PER_SAMPLE = (0.001, 0.003)
"""Seconds of a sample on two ranks."""


def a_round(step, batch_sizes, plan, reason="because", **changes):
    busy = [samples * seconds for samples, seconds in zip(batch_sizes, PER_SAMPLE, strict=True)]
    fields = {
        "epoch": 0,
        "step": step,
        "batch_sizes": batch_sizes,
        "busy_seconds": tuple(busy),
        "cpu_load": (0.25, math.nan),
        "step_seconds": max(busy) + 0.004,
        "plan_before": batch_sizes,
        "plan": plan,
        "reason": reason,
        "predicted_seconds": (0.1, 0.05),
    }
    return RoundEntry(**{**fields, **changes})


ROUNDS = [
    a_round(2, (32, 32), (48, 16), "rank 1 was slowest"),
    *(a_round(step, (48, 16), (48, 16), "kept: fine") for step in range(4, 24, 2)),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def write(path, *entries):
    journal = Journal(path)
    for entry in entries:
        journal.write(entry)


def report(*arguments):
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_who_is_slow_and_who_waits(path):
    write(path, JobEntry(("a", "b"), "dbs", 64), *ROUNDS)
    code, output, errors = report(path)
    lines = output.splitlines()
    assert (code, errors) == (0, "")
    assert lines[0] == (
        "run.jsonl, part 1 of 1: 2 ranks on 2 hosts, global batch 64, dbs; epoch 0, "
        "11 rounds, 1 change of plan"
    )
    assert lines[2:5] == [
        "Nothing holds the job back: ranks wait for slower ones 0 % of a step, and communication "
        "and the rest take 8 %.",
        "This is sure: 100 % of resampled rounds show the same, from the newest 6 rounds.",
        "There is nothing to do: the best split would be 1.00 times as fast.",
    ]
    # 32 and 96 ms of 100 ms, then 48 and 48 of 52.
    assert cells(lines[8]) == ["0", "a", "32", "48", "1000", "64 %", "0 %", "25 %", "3.00", "1.00"]
    assert cells(lines[9]) == ["1", "b", "32", "16", "333", "0 %", "0 %", "-", "0.33", "1.00"]
    assert lines[11:14] == [
        "A step took 100.0 ms at first and takes 52.0 ms now: 1.92 times as fast.",
        "Ranks waited for slower ones 32 % of the time, now 0 %; communication and the rest took "
        "4 %, now 8 %.",
        "Slowest at its batch size: rank 1 on b, with 0.33 of the speed of rank 0 on a, the "
        "fastest.",
    ]
    assert lines[14:] == [
        "",
        "Changes of plan:",
        "epoch 0, step 2: [32, 32] -> [48, 16]: rank 1 was slowest",
    ]


def test_a_job_that_never_decides_shows_who_is_slow_too(path):
    write(path, JobEntry(("a", "a"), "even", 64), a_round(9, (32, 32), (32, 32), "kept: never"))
    _, output, _ = report(path)
    assert "A step takes 100.0 ms.\nRanks wait for slower ones 32 % of the time; comm" in output
    assert "\nRank 1 on a holds the job back: it takes 3.0 times as long as the median" in output
    assert "This is a first impression, from 1 round: let the job run for longer." in output
    # 96 ms by the slowest; 64 samples at 1333 a second take 48, and 4 ms follow.
    assert 'with strategy="adaptive" a step would take 52.5 ms (' in output
    assert "2 ranks on 1 host, global batch 64, even" in output
    assert output.endswith("No change of plan; the last round: kept: never\n")


def test_now_is_what_was_measured_of_the_last_batch_sizes(path):
    slow, fast = a_round(2, (32, 32), (48, 16)), a_round(4, (48, 16), (49, 15))
    write(path, JobEntry(("a", "b"), "dbs", 64), slow, slow, fast)
    lines = report(path)[1].splitlines()
    assert cells(lines[8])[2:7] == ["32", "48", "1000", "64 %", "0 %"]
    assert "takes 52.0 ms now: 1.92 times as fast" in lines[11]


def test_a_slow_network_is_named(path):
    slow, fast = Link("a", "c", 12e6, 0.02), Link("a", "b", 250e6, 0.0004)
    busy = {"busy_seconds": (0.032, 0.0325), "step_seconds": 0.1}
    rounds = [
        a_round(2, (32, 32), (32, 32), "kept: fine", **busy, links=(slow,)),
        a_round(4, (32, 32), (32, 32), "kept: fine", **busy, links=(fast,)),
        a_round(6, (32, 32), (32, 32), "kept: fine", **busy),
    ]
    write(path, JobEntry(("a", "b"), "dbs", 64), *rounds)
    lines = report(path)[1].splitlines()
    assert lines[2] == (
        "The network holds the job back: communication that nothing hides takes 68 % of a step. "
        "Slowest link: a - c, 96 Mbit/s, 20 ms; others 2 Gbit/s."
    )
    assert lines[11:14] == [
        "A step takes 100.0 ms.",
        "Ranks wait for slower ones 0 % of the time; communication and the rest take 68 %.",
        "The ranks are equally fast.",
    ]


def test_measured_communication_is_shown_by_its_parts(path):
    busy = {"busy_seconds": (0.03, 0.03), "step_seconds": 0.1, "first_bucket_seconds": (0.01, 0.01)}
    measured = {"overlap_seconds": 0.03, "last_bucket_seconds": 0.02, "negotiation_seconds": 0.002}
    rounds = [a_round(step, (32, 32), (32, 32), **busy, **measured) for step in (2, 4)]
    write(path, JobEntry(("a", "b"), "dbs", 64), *rounds)
    lines = report(path)[1].splitlines()
    # T_o ends at 40 ms, 10 ms after the ranks are ready.
    assert lines[2].startswith("Ranks that are slow by turns hold the job back:")
    assert lines[12:13] == [
        "Ranks wait for slower ones 0 % of the time; communication and the rest take 70 %: 30 % "
        "communication that nothing hides (negotiation 2 %), 40 % waiting for ranks that are slow "
        "by turns.",
    ]


def test_where_the_network_takes_the_time_no_split_is_praised(path):
    busy = {"busy_seconds": (0.001, 0.003), "step_seconds": 0.1}
    write(path, JobEntry(("a", "b"), "dbs", 64), a_round(2, (32, 32), (32, 32), **busy))
    output = report(path)[1]
    assert "The network holds the job back: communication that nothing hides takes 97 %" in output
    assert "adaptive" not in output


def test_on_one_host_no_network_is_blamed(path):
    busy = {"busy_seconds": (0.03, 0.03), "step_seconds": 0.1}
    write(path, JobEntry(("a", "a"), "dbs", 64), a_round(2, (32, 32), (32, 32), **busy))
    assert "\nThe exchange of gradients holds the job back: comm" in report(path)[1]


@pytest.mark.parametrize(("slower", "is_named"), [(0.99, False), (0.96, False), (0.9, True)])
def test_a_rank_of_about_the_same_speed_is_not_called_slowest(path, slower, is_named):
    busy = {"busy_seconds": (0.1, 0.1 / slower)}
    write(path, JobEntry(("a", "b"), "dbs", 64), a_round(2, (32, 32), (32, 32), **busy))
    output = report(path)[1]
    assert ("Slowest at its batch size: rank 1" in output) == is_named
    assert ("The ranks are equally fast." in output) != is_named


def test_one_rank_waits_for_nobody(path):
    alone = {"batch_sizes": (64,), "plan": (64,), "plan_before": (64,)}
    alone |= {"busy_seconds": (0.1,), "cpu_load": (0.0,)}
    write(path, JobEntry(("a",), "dbs", 64), replace(a_round(2, (32, 32), (32, 32)), **alone))
    code, output, errors = report(path)
    assert (code, errors) == (0, "")
    assert "1 rank on 1 host" in output and "Slowest" not in output
    assert "Nothing holds the job back: it has one rank." in output


def test_what_nobody_has_measured_is_not_shown(path):
    unknown = {"busy_seconds": (math.nan, 0.1), "step_seconds": math.nan}
    write(path, JobEntry(("a", "b"), "dbs", 64), a_round(2, (32, 32), (32, 32), **unknown))
    assert "No round has measured a step yet." in report(path)[1]
    write(path, a_round(4, (32, 32), (32, 32), busy_seconds=(math.nan, math.nan)))
    code, output, _ = report(path)
    assert code == 0 and "Slowest" not in output
    assert "No verdict: no round has measured a step yet." in output
    assert "communication and the rest take -." in output
    row = ["0", "a", "32", "32", "-", "-", "-", "25 %", "-", "-"]
    assert cells(output.splitlines()[6]) == row


def test_parts(path):
    write(path, JobEntry(("a", "b"), "even", 64), a_round(2, (32, 32), (32, 32)))
    write(path, JobEntry(("a", "b"), "dbs", 64), *ROUNDS)
    assert report(path)[1].startswith("run.jsonl, part 2 of 2: 2 ranks on 2 hosts, global batch 64")
    assert "part 1 of 2" in report(path, "--part", 1)[1]
    code, _, errors = report(path, "--part", 3)
    assert code == 2 and "--part 3" in errors and "has parts 1 to 2" in errors


def test_of_many_ranks_and_changes_the_slowest_and_the_last_are_shown(path):
    size = 40
    many = [
        RoundEntry(
            epoch=0,
            step=step,
            batch_sizes=(8,) * size,
            busy_seconds=tuple(0.01 * (1 + (rank * 7) % size) for rank in range(size)),
            cpu_load=(0.0,) * size,
            step_seconds=0.4,
            plan_before=(8,) * size,
            plan=(9, 7, *(8,) * (size - 2)),
            reason="because",
            predicted_seconds=(0.4, 0.4),
        )
        for step in range(30)
    ]
    write(path, JobEntry(("a",) * size, "dbs", 8 * size), *many)
    _, output, _ = report(path)
    rows = [line for line in output.splitlines() if line.startswith("| ")][1:]
    ranks = [int(cells(row)[0]) for row in rows]
    assert ranks == sorted(rank for rank in range(size) if (rank * 7) % size >= size - 16)
    assert "The 16 slowest of 40 ranks; --all shows all of them." in output
    assert "Changes of plan, the last 10; --all shows all:" in output
    assert output.count("step 2") == 10
    _, output, _ = report(path, "--all")
    assert output.count("\n| ") == 1 + size and output.count("because") == 30


def test_damage_is_said(path):
    write(path, JobEntry(("a", "b"), "dbs", 64), *ROUNDS)
    with path.open("a") as file:
        file.write("{\n")
    code, output, errors = report(path)
    assert code == 0 and output
    assert errors == "1 damaged line was left out.\n"


def test_what_is_no_journal_is_said_in_one_line(path):
    path.write_text("hello\n")
    code, output, errors = report(path)
    assert (code, output, len(errors.splitlines())) == (2, "", 1)
    assert "has no round of a job" in errors


def test_picture(path, tmp_path):
    write(path, JobEntry(("a", "b"), "dbs", 64), *ROUNDS)
    assert report(path, "--picture", tmp_path / "run.png")[0] == 0
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    for name, message in (
        ("run.xyz", "unknown format 'xyz'"),
        ("missing/run.png", "No such file or directory"),
    ):
        code, _, errors = report(path, "--picture", tmp_path / name)
        assert code == 2 and message in errors and len(errors.splitlines()) == 1


@pytest.mark.filterwarnings("error")
def test_picture_of_many_ranks_with_a_round_in_which_nothing_is_known(path, tmp_path):
    size = 20
    same = {"batch_sizes": (8,) * size, "plan": (8,) * size, "plan_before": (8,) * size}
    known = same | {"busy_seconds": (0.1,) * size, "cpu_load": (0.0,) * size}
    unknown = known | {"busy_seconds": (math.nan,) * size}
    rounds = [replace(a_round(2, (32, 32), (32, 32)), **fields) for fields in (known, unknown)]
    write(path, JobEntry(("a",) * size, "dbs", 8 * size), *rounds)
    code, _, errors = report(path, "--picture", tmp_path / "run.png")
    assert (code, errors) == (0, "")
