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
MOST_LINES_OF_ADAPTIVE = 1000
"""Of code; without blank lines, comments, docstrings and imports."""

BRAIN = ROOT / "hvd_dbs" / "balancing"
ADAPTIVE = (
    "time_models/posterior.py",
    "solvers/value_of_change.py",
    "solvers/decision_interval.py",
)
"""What `strategies.adaptive` is made of, besides what they import."""
FOR_ADAPTIVE = ("change_signal.py", "priors.py")
"""What drivers and other solvers use for its sake."""
LISTS = ("strategies.py", "time_models/__init__.py", "solvers/__init__.py")
"""These name all methods."""


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


def imported(path):
    """Modules of the package that a module imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = {(ROOT / name.replace(".", "/")).with_suffix(".py") for name in names}
    return {path for path in files if path.exists()}


def reached(paths, without=frozenset()):
    """These modules, and what they import."""
    found, to_do = set(), list(paths)
    while to_do:
        path = to_do.pop()
        if path not in found and path not in without:
            found.add(path)
            to_do += imported(path)
    return found


def num_code_lines(path):
    """Lines that are no import, docstring, comment or blank."""
    text = path.read_text()
    others = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for line in range(node.lineno, node.end_lineno + 1)
    }
    lines = [line.strip() for line in text.splitlines()]
    return sum(
        number not in others and line != "" and not line.startswith("#")
        for number, line in enumerate(lines, 1)
    )


def test_code_that_only_adaptive_uses_is_short():
    own = {BRAIN / name for name in ADAPTIVE + FOR_ADAPTIVE}
    everything = set((ROOT / "hvd_dbs").rglob("*.py")) - {BRAIN / name for name in LISTS}
    everything -= {path for path in everything if path.name == "__init__.py"}
    candidates = reached(own)
    of_others = set().union(*(imported(path) for path in everything - candidates)) - own
    only = candidates - reached(of_others, without=own)
    assert {BRAIN / "solvers/kinds.py", BRAIN / "time_models/surprise.py"} < only
    assert sum(num_code_lines(path) for path in only) <= MOST_LINES_OF_ADAPTIVE
