"""The table of kernels that tune themselves in docs/gpus.md has what the simulator prints."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_dbs.cli.main import main

DOCS = (Path(__file__).parents[3] / "docs" / "gpus.md").read_text()


@pytest.mark.parametrize("milliseconds", ["300", "1"])
def test_the_table_has_what_the_simulator_prints(milliseconds, tmp_path, monkeypatch):
    scenario = re.search(r"<!-- example: tuning.toml -->\n```toml\n(.*?)```", DOCS, re.DOTALL)
    row = re.search(rf"\| `switch_ms = {milliseconds}`.*", DOCS)
    command = re.search(r"`hvd-dbs (simulate tuning.toml [^`]*)` prints", DOCS)
    assert scenario and row and command
    text = scenario[1].replace("switch_ms = 300", f"switch_ms = {milliseconds}")
    (tmp_path / "tuning.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, command[1].split())
    assert result.exit_code == 0, result.output
    printed = re.findall(r"^\| (?:adaptive|dbs|lb_bsp_gpu) +\| +(0\.\d+)", result.output, re.M)
    assert printed == re.findall(r"\| (0\.\d+),", row[0])  # Of each cell the first seed.
