"""Examples in docstrings of what may import TensorFlow run; the others in tests/unit."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.unit.test_layers import modules_with_examples


@pytest.mark.parametrize("name", modules_with_examples(heavy=True))
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
