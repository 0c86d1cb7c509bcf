"""The scripts of examples/by_feature differ from the common one in few lines, and mark them."""

from __future__ import annotations

import ast
import re
from difflib import SequenceMatcher

import pytest

from tests.jobs import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
BASE = EXAMPLES / "by_feature" / "base.py"
SCRIPTS = sorted(set(BASE.parent.glob("*.py")) - {BASE})
MOST_NEW_LINES = 20


def code(text: str) -> list[str]:
    """Its lines after the docstring, without indentation: a function may be put around them."""
    start = ast.parse(text).body[0].end_lineno
    return [line.strip() for line in text.splitlines()[start:] if line.strip()]


def changes(base: str, text: str) -> list[list[str]]:
    """The new lines of each place where a script differs; none where it only leaves lines out."""
    old, new = code(base), code(text)
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [new[i:j] for kind, _, _, i, j in matcher.get_opcodes() if kind != "equal"]


def unmarked(base: str, text: str) -> list[list[str]]:
    return [
        lines for lines in changes(base, text) if not lines or not re.search("# New\\b", lines[0])
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_differs_from_the_common_script_is_marked_and_short(script):
    base, text = BASE.read_text(), script.read_text()
    assert changes(base, text)
    assert unmarked(base, text) == []
    assert sum(map(len, changes(base, text))) <= MOST_NEW_LINES
    marks = text.count("# New")
    assert marks == sum("# New" in line for lines in changes(base, text) for line in lines)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hvd.init()\n", "hvd.init()\nkeras.backend.clear_session()\n"),
        ("epochs=4", "epochs=5"),
        ("    hvd.callbacks.MetricAverageCallback(),\n", ""),
    ],
)
def test_another_difference_is_found(old, new):
    base = BASE.read_text()
    assert old in base
    assert unmarked(base, base.replace(old, new, 1))


def test_the_index_has_every_script():
    index = re.findall(r"^\| `by_feature/(\w+\.py)`", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(index) == sorted(script.name for script in [*SCRIPTS, BASE])
