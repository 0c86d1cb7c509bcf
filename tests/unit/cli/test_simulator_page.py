"""The commands in docs/simulator.md print what stands below them."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_dbs.cli.main import main

DOCS = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()


def write_curves(path):
    """The curves that the page gives in words: three batch sizes of two devices."""
    rows = re.search(r"\(([\d., ]+) ms and\s+([\d.,\s]+) ms\)", DOCS)
    lines = [
        f"{device},{batch_size},{milliseconds}"
        for device, row in zip(("V100", "P100"), rows.groups(), strict=True)
        for batch_size, milliseconds in zip((32, 64, 128), re.split(r",\s+", row), strict=True)
    ]
    path.write_text("\n".join(["device,batch_size,milliseconds", *lines]))


@pytest.mark.parametrize("name", ["cluster.toml", "nodes.toml"])
def test_the_example_prints_what_the_page_says(name, tmp_path, monkeypatch):
    scenario = re.search(rf"<!-- example: {name} -->\n```toml\n(.*?)```", DOCS, re.DOTALL)
    shown = re.search(rf"```\n\$ hvd-dbs (simulate {name} [^\n]*)\n(.*?)```", DOCS, re.DOTALL)
    assert scenario and shown
    (tmp_path / name).write_text(scenario[1])
    write_curves(tmp_path / "curves.csv")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, shown[1].split())
    assert result.output == shown[2]


def test_what_balancing_brings_is_computed_from_the_table():
    table = DOCS[DOCS.index("$ hvd-dbs simulate cluster.toml") :]
    even, adaptive = (
        int(re.search(rf"^\| {name} +\|[^|]*\|[^|]*\| +(\d+) \|", table, re.MULTILINE)[1])
        for name in ("even", "adaptive")
    )
    assert f"{adaptive} / {even} = {adaptive / even:.2f}." in DOCS
