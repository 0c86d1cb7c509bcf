"""What the benchmark of the ramp makes of its runs."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ramp.figures import AFTER, BEFORE, compared, figures
from benchmarks.ramp.report import table
from benchmarks.ramp.training import Setting


def run(after, accuracy=0.9):
    """A loss of 2 before the only change, and of `after` after it."""
    losses = [2.0] * BEFORE + list(after)
    return {
        "seed": 0,
        "test_loss": 0.5,
        "test_accuracy": accuracy,
        "changes": [BEFORE],
        "probe_losses": losses,
    }


def test_losses_around_a_change_are_relative_to_those_before():
    jump = [8.0] + [1.0] * (AFTER - 1)
    runs = {"ramp": [run([1.0] * AFTER)] * 2, "at once": [run(jump, accuracy=0.8)] * 2}
    shown = figures(runs)
    assert shown["ramp"]["changes"][0]["worst"]["median"] == 0.5
    assert shown["at once"]["changes"][0]["worst"]["median"] == 4.0
    difference = compared(runs)
    assert difference["points of test accuracy"]["median"] == pytest.approx(10.0)
    assert (
        difference["points of test accuracy"]["higher"],
        difference["points of test accuracy"]["lower"],
    ) == (2, 0)
    assert difference["mean loss at change 1"]["median"] == pytest.approx(0.5 - np.mean(jump) / 2)
    job = {"runs": runs, "figures": shown, "compared": {"at once": difference}}
    lines = table(Setting((1, 2), 1, 8, 0.1), job)
    assert (
        "| at once | 80.0 (80.0 - 80.0) | 0.500 (0.500 - 0.500) | 4.00 (4.00 - 4.00) |"
        in (lines[5][:84])
    )
