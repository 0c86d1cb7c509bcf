"""The table in docs/micro_batches.md has what the simulator prints."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_dbs.cli.main import main

DOCS = (Path(__file__).parents[3] / "docs" / "micro_batches.md").read_text()

IN_PARTS = {
    "multiple_of = 1": "multiple_of = 32",
    "fixed_ms = 5": "fixed_ms = 0",
    "per_sample_ms = 0.5": "per_sample_ms = 0.65625",
    "per_sample_ms = 2.0": "per_sample_ms = 2.15625",
}
NO_BOUND = {"max_batch_size = 64": ""}


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("a bound of 64 samples", {}),
        ("micro-batches of 32 samples", IN_PARTS | NO_BOUND),
        ("no bound", NO_BOUND),
    ],
)
def test_the_table_has_what_the_simulator_prints(row, changes, tmp_path, monkeypatch):
    scenario = re.search(r"<!-- example: memory.toml -->\n```toml\n(.*?)```", DOCS, re.DOTALL)
    shown = re.search(rf"\| {row} \| (\d+) \| (\d+) \|", DOCS)
    command = re.search(r"`hvd-dbs (simulate memory.toml [^`]*)` prints", DOCS)
    assert scenario and shown and command
    text = scenario[1]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "memory.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    output = CliRunner().invoke(main, command[1].split()).output
    rows = [line.split("|") for line in output.splitlines() if line.startswith("| ")][1:]
    assert [cells[4].strip() for cells in rows] == list(shown.groups())
