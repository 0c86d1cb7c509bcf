"""What the README shows is there. Its script runs after the change in tests/mpi."""

from __future__ import annotations

import re

from tests.jobs import REPOSITORY

README = (REPOSITORY / "README.md").read_text()

DIFF = re.search(r"```diff\n(.*?)```", README, re.DOTALL)[1].splitlines()


def test_the_script_is_one_before_the_change():
    before = (line[1:] for line in DIFF if not line.startswith("+"))
    compile("\n".join(before), "README.md", "exec")


def test_the_quick_start_makes_the_same_change():
    page = (REPOSITORY / "docs" / "index.md").read_text()
    assert re.search(r"```diff\n(.*?)```", page, re.DOTALL)[1].splitlines() == DIFF


def test_every_strategy_is_in_the_table():
    from hvd_dbs.balancing import strategies

    rows = re.findall(r"^\| `(\w+)`", README, re.MULTILINE)
    assert set(strategies.PRESETS) <= set(rows)


def test_every_file_it_names_exists():
    for name in re.findall(r"`((?:docs|examples|scripts|tests)/[\w./]+)`", README):
        assert (REPOSITORY / name).exists(), name
