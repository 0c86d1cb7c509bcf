"""Public names have docstrings, with examples that run, and entries in the API reference.

Examples in docstrings of what never imports TensorFlow run in tests/unit.
"""

from __future__ import annotations

import doctest
import functools
import importlib
import re
from pathlib import Path
from types import ModuleType

import horovod.tensorflow as horovod
import pytest

from tests.unit.test_layers import modules_with_examples

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
MODULES = [
    "hvd_dbs.balancing.strategies",
    "hvd_dbs.data",
    "hvd_dbs.job.observers",
    "hvd_dbs.keras",
    "hvd_dbs.keras.callbacks",
    "hvd_dbs.keras.elastic",
    "hvd_dbs.keras.layers",
    "hvd_dbs.tensorflow",
    "hvd_dbs.tensorflow.elastic",
]
HOROVODS = ["keras", "elastic", "keras.elastic"]


@pytest.mark.parametrize("name", modules_with_examples(heavy=True))
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def public(module):
    """The public names of a module: ours, with what they stand for, and Horovod's own."""
    horovods = [horovod, *(importlib.import_module(f"horovod.tensorflow.{n}") for n in HOROVODS)]
    ours, others = {}, set()
    for name in (found := importlib.import_module(module)).__all__:
        thing = getattr(found, name)
        if any(getattr(one, name, None) is thing for one in horovods):
            others.add(name)
        else:
            ours[name] = thing
    return ours, others


@functools.cache
def described():
    """What the pages of the reference have an entry for, by identity."""
    things = {}
    for page in REFERENCE.glob("*.md"):
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE):
            module, _, name = path.rpartition(".")
            thing = getattr(importlib.import_module(module), name)
            things[id(thing)] = thing
    return things


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings_and_entries(module):
    ours, _ = public(module)
    assert {name for name, thing in ours.items() if not thing.__doc__} == set()
    assert {name for name, thing in ours.items() if id(thing) not in described()} == set()


def test_no_public_module_is_left_out():
    modules = {
        thing.__name__
        for module in MODULES
        for thing in public(module)[0].values()
        if isinstance(thing, ModuleType)
    }
    assert modules <= set(MODULES)


def test_horovods_own_names_are_in_the_table():
    rows = [
        [set(re.findall(r"`(\w[\w.]*)`", cell)) for cell in line.strip("|").split("|")[1:]]
        for line in (REFERENCE / "horovod.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    heads, *rows = rows
    for column, head in enumerate(heads):
        assert set.union(*(row[column] for row in rows)) == public(*head)[1], head
    without = [module for module in MODULES if public(module)[1] and {module} not in heads]
    assert without == []
