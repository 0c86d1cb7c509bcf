"""docs/troubleshooting.md quotes messages that hvd_dbs still has."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)
FILLED_IN = "\0"
"""Where a message has a value."""


@functools.cache
def messages() -> list[str]:
    """All texts in the source of hvd_dbs."""
    nodes = [
        node
        for path in (ROOT / "hvd_dbs").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    whole = [node.value for node in nodes if isinstance(node, ast.Constant)]
    pieces = [node.values for node in nodes if isinstance(node, ast.JoinedStr)]
    texts = [text for text in whole if isinstance(text, str)]
    for row in pieces:
        texts.append(
            "".join(str(one.value) if isinstance(one, ast.Constant) else FILLED_IN for one in row)
        )
    return texts


def test_messages_are_quoted():
    assert len(QUOTED) > 100
    assert len(set(QUOTED)) == len(QUOTED)


@pytest.mark.parametrize("quoted", QUOTED)
def test_the_message_is_in_the_source(quoted):
    parts = quoted.split("...")
    assert len("".join(parts)) >= 12, "too little of it to find it"
    beginning = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    assert any(map(beginning.match, messages()))
