"""The command in docs/simulator.md prints what stands below it."""

import re
from pathlib import Path

from click.testing import CliRunner

from hvd_dbs.cli.main import main

DOCS = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()


def test_the_example_prints_what_the_page_says(tmp_path, monkeypatch):
    scenario = re.search(r"<!-- example: nodes.toml -->\n```toml\n(.*?)```", DOCS, re.DOTALL)
    shown = re.search(r"```\n\$ hvd-dbs (simulate nodes.toml [^\n]*)\n(.*?)```", DOCS, re.DOTALL)
    assert scenario and shown
    (tmp_path / "nodes.toml").write_text(scenario[1])
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, shown[1].split())
    assert result.output == shown[2]
