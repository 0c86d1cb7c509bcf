"""What `hvd-dbs simulate --replay` foresees from journals of jobs on an H100, and what it took."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hvd_dbs.cli.main import main

JOURNALS = Path(__file__).resolve().parents[3] / "benchmarks" / "journals" / "h100_parts"
STRATEGIES = tuple(sorted(path.stem for path in JOURNALS.glob("*.jsonl")))


@pytest.fixture(scope="module")
def foreseen():
    """Milliseconds of a step, by journal and strategy; of the journal's own: what it took."""
    return {journal: table(journal) for journal in STRATEGIES}


def table(journal):
    words = ["simulate", "--replay", str(JOURNALS / f"{journal}.jsonl")]
    words += [word for name in STRATEGIES for word in ("--strategy", name)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    rows = re.findall(r"^\| (\w+)[^|]*\|[^|]*\| *([\d.]+) \|", result.output, re.MULTILINE)
    measured = re.search(r"([\d.]+) ms in its second half", result.output)
    return {name: float(ms) for name, ms in rows} | {journal: float(measured.group(1))}


def test_another_strategy_is_foreseen_on_a_gpu(foreseen):
    differences = [
        row[strategy] / foreseen[strategy][strategy] - 1
        for journal, row in foreseen.items()
        for strategy in STRATEGIES
        if strategy != journal
    ]
    assert len(differences) == 20
    assert np.median(np.abs(differences)) <= 0.05
    assert np.max(np.abs(differences)) <= 0.10
