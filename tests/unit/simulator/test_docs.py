"""docs/simulator.md says what the code does: its example runs, its fields are those there are."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from hvd_dbs.simulator import read_scenario
from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.disturbances import DISTURBANCES
from hvd_dbs.simulator.rank_groups import RANK_GROUPS, RankGroup
from hvd_dbs.simulator.scenario import HostLoad, Noise, Scenario

DOCS = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()

ELSEWHERE = {"ranks", "noise", "host_load", "communication", "disturbances", "measured"}
"""Fields of a scenario that are tables of the file."""

RECORDS = {
    "### The top of the file": [Scenario],
    "All kinds of `curve`": [RankGroup],
    "### `[noise]`": [Noise],
    "### `[host_load]`": [HostLoad],
    "### `[communication]`": [Communication],
} | {f'`kind = "{name}"`': [kind] for name, kind in DISTURBANCES.items()}


def documented(heading: str) -> dict[str, str]:
    """Fields and defaults of the first table after a heading."""
    after = DOCS[DOCS.index(heading) :]
    table = re.search(r"\|---.*\n((?:\|.*\n)+)", after)
    assert table
    rows = [line.split("|")[1:-1] for line in table[1].splitlines()]
    return {row[0].strip(" `"): row[2].strip() for row in rows}


@pytest.mark.parametrize("heading", RECORDS)
def test_every_field_with_its_default(heading):
    given = documented(heading)
    own = [entry for entry in fields(RECORDS[heading][0]) if entry.name not in ELSEWHERE]
    assert set(given) == {entry.name for entry in own}
    for entry in own:
        if entry.name in ("name", "forward_fraction"):
            continue
        texts = {MISSING: "required", None: "none", (): "[]", "adaptive": '"adaptive"'}
        default = texts[entry.default] if entry.default in texts else str(entry.default)
        assert given[entry.name] == default, entry.name


@pytest.mark.parametrize("name", RANK_GROUPS)
def test_every_field_of_each_curve(name):
    given = documented(f'`curve = "{name}"`')
    shared = {entry.name for entry in fields(RankGroup)} | {"per_sample_ms", "fixed_ms"}
    own = {entry.name for entry in fields(RANK_GROUPS[name])} - shared
    if name == "affine":
        own = {"per_sample_ms", "fixed_ms"}
    assert own <= set(given)


def test_the_example_is_a_scenario(tmp_path):
    text = re.search(r"<!-- example: nodes.toml -->\n```toml\n(.*?)```", DOCS, re.DOTALL)
    assert text
    path = tmp_path / "nodes.toml"
    path.write_text(text[1])
    scenario = read_scenario(path)
    assert (scenario.size, len(scenario.disturbances)) == (4, 2)
