"""The tables of benchmarks/micro.py."""

from __future__ import annotations

from benchmarks.micro import table_of_changes, table_of_steps


def test_ratios_are_those_within_a_repeat():
    """In a slow repeat both are slow: each repeat has 1.5."""
    seconds = {"as a whole": [0.1, 0.2, 0.4], "2 micro-batches": [0.15, 0.3, 0.6]}
    lines = table_of_steps("digits", seconds)
    assert lines[2] == "| as a whole | 200.0 (150.0 - 300.0) | 1.000 (1.000 - 1.000) |"
    assert lines[3] == "| 2 micro-batches | 300.0 (225.0 - 450.0) | 1.500 (1.500 - 1.500) |"


def test_what_changes_cost_is_added_up():
    lines = table_of_changes("digits", {"as a whole, XLA": [1.0, 2.0, 3.0]})
    assert lines[2] == "| as a whole, XLA | 6.00 | 2.000 (1.500 - 2.500) | 3 |"
