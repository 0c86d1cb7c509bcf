"""Imports point one way, and the brain runs without TensorFlow, MPI or Horovod."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "hvd_dbs"

ALLOWED = {
    "balancing": set(),
    "sampling": set(),
    "simulator": {"balancing", "sampling"},
    "keras_stack": set(),
    "rank_names": set(),
    "host": set(),
    "ops": set(),
    "watchdog": {"rank_names"},
    "comm": {"rank_names", "watchdog"},
    "elastic": {"comm", "rank_names", "watchdog"},
    "data": {"sampling", "ops", "host"},
    "learning_rate": set(),
    "job": {
        "balancing",
        "comm",
        "data",
        "host",
        "learning_rate",
        "ops",
        "rank_names",
        "sampling",
        "watchdog",
    },
    "balancer": {"balancing", "comm", "job", "learning_rate", "ops", "sampling"},
    "tensorflow": {
        "keras_stack",
        "balancing",
        "rank_names",
        "watchdog",
        "comm",
        "elastic",
        "data",
        "job",
        "ops",
        "balancer",
    },
    "keras": {
        "keras_stack",
        "balancing",
        "watchdog",
        "comm",
        "elastic",
        "data",
        "job",
        "learning_rate",
        "ops",
        "balancer",
        "tensorflow",
    },
    "cli": {
        "balancing",
        "sampling",
        "simulator",
        "keras_stack",
        "comm",
        "rank_names",
        "host",
        "elastic",
        "job",
        "ops",
        "data",
        "tensorflow",
        "keras",
    },
}
"""What each part may import besides itself."""

HEAVY = {
    "tensorflow": {
        "watchdog",
        "comm",
        "host",
        "data",
        "ops",
        "job",
        "learning_rate",
        "balancer",
        "tensorflow",
        "keras",
    },
    "keras": {"keras"},
    "horovod": {"watchdog", "comm", "elastic", "job", "ops", "tensorflow", "keras"},
    "mpi4py": {"watchdog", "comm", "ops"},
}
"""Which parts may import a library at the top of a module or inside of functions."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    part = path.relative_to(PACKAGE).with_suffix("").parts[0]
    for name in imported(path):
        names = name.split(".")
        if names[0] == "hvd_dbs" and len(names) > 1 and names[1] in ALLOWED and part in ALLOWED:
            assert names[1] == part or names[1] in ALLOWED[part], f"{part} imports {name}"
        if names[0] in HEAVY and part in ALLOWED and part != "cli":
            assert part in HEAVY[names[0]], f"{part} imports {name}"


def test_places_that_contributing_names_exist():
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    table = page[page.index("## Where things are") : page.index("Imports point one way")]
    places = re.findall(r"`(\w+/[\w/]+(?:\.py|/))`", table)
    assert len(places) >= 20 and all((PACKAGE / place).exists() for place in places)


def test_the_brain_needs_numpy_alone():
    code = (
        "import sys; from hvd_dbs.balancing import apportion, strategies; import hvd_dbs.sampling; "
        "print(sorted({'tensorflow', 'keras', 'horovod', 'mpi4py', 'psutil'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.strip() == "[]"


def modules_with_examples(heavy):
    """Names of modules with `>>>`; heavy: of those parts that may import TensorFlow."""
    paths = [path for path in MODULES if ">>>" in path.read_text()]
    return [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in paths
        if heavy == (path.relative_to(PACKAGE).with_suffix("").parts[0] in HEAVY["tensorflow"])
    ]


@pytest.mark.parametrize("name", modules_with_examples(heavy=False))
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
