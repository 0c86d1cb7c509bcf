"""docs/report.md shows what the commands that it names print."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.simulated_journal import EXAMPLE, HOSTS, simulated_job
from hvd_dbs.cli.report import what_if
from hvd_dbs.cli.report.text import text_of
from hvd_dbs.cli.report.verdict import Verdict
from hvd_dbs.cli.report.what_if_text import what_if_rows

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "report.md").read_text()


@pytest.mark.parametrize("strategy", ["even", "dbs"])
def test_the_report_that_the_page_shows(strategy):
    part = simulated_job(EXAMPLE, HOSTS, strategy)
    text = text_of(part, Verdict.of(part)).split("\n\n")
    # Of the even job its verdict; of the other its table of ranks, and what follows.
    shown = text[1:2] if strategy == "even" else text[2:4]
    for line in "\n".join(shown).splitlines():
        assert f"    {line}\n" in PAGE, line


def test_the_answers_that_the_page_shows():
    model = Verdict.of(simulated_job(EXAMPLE, HOSTS, "even")).model
    found = [what_if.as_it_was(model), what_if.if_split_best(model)]
    for answer in (*found, *what_if.with_strategies(model, ("even", "dbs"))):
        ((question, milliseconds, *_),) = what_if_rows(model, [answer])
        (line,) = [line for line in PAGE.splitlines() if line.startswith(f"    | {question} ")]
        assert line.split("|")[2].strip() == milliseconds
