"""Python blocks of README and docs can be compiled, and call what there is.

They are parts of scripts: those of README, docs/strategies.md and docstrings run as they are.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

from hvd_dbs.balancer import Balancer
from hvd_dbs.job.loop import TrainingLoop

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    pytest.param(
        textwrap.dedent(block[2]),
        id=f"{page.relative_to(ROOT)}-{text[: block.start()].count(chr(10))}",
    )
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for text in [page.read_text()]
    for block in re.finditer(r"^( *)```python\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
]


def place(node):
    """`hvd.callbacks.X` as names, from the left; of anything else nothing."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def named(names, hvd):
    """What a block calls so; None if it is not ours."""
    roots = {"hvd": hvd, "balancer": Balancer}
    if names[:1] == ["hvd_dbs"]:
        thing, names = importlib.import_module(".".join(names[:2])), names[2:]
    elif names[:2] == ["balancer", "loop"]:
        thing, names = TrainingLoop, names[2:]
    elif names and names[0] in roots:
        thing, names = roots[names[0]], names[1:]
    else:
        return None
    for name in names:
        if isinstance(thing, property):  # Nothing says what it returns.
            return None
        thing = getattr(thing, name)
    return thing


@pytest.mark.parametrize("code", BLOCKS)
def test_what_a_block_uses_is_there(code):
    tree = ast.parse(code)
    imported = re.search(r"import (hvd_dbs\.\w+) as hvd", code)
    hvd = importlib.import_module(imported[1] if imported else "hvd_dbs.keras")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("hvd_dbs"):
            assert all(hasattr(importlib.import_module(node.module), n.name) for n in node.names)
        if isinstance(node, ast.Attribute):
            named(place(node), hvd)
        if isinstance(node, ast.Call) and (called := named(place(node.func), hvd)) is not None:
            known = inspect.signature(called).parameters.values()
            takes_all = any(one.kind is one.VAR_KEYWORD for one in known)
            given = {keyword.arg for keyword in node.keywords}
            assert takes_all or given <= {one.name for one in known}, ast.unparse(node)


def test_blocks_are_found():
    assert len(BLOCKS) > 20
