"""A module or a function that grows long hides a concept that deserves a name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("hvd_dbs", "benchmarks", "examples", "scripts")
MODULES = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))
MOST_LINES_OF_MODULE = 300
MOST_LINES_OF_FUNCTION = 60
"""With signature and docstring."""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_are_short(path):
    text = path.read_text()
    num_lines = len(text.splitlines())
    assert num_lines <= MOST_LINES_OF_MODULE
    functions = [
        (node.name, node.end_lineno - node.lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [one for one in functions if one[1] > MOST_LINES_OF_FUNCTION] == []
