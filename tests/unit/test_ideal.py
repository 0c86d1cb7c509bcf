"""The benchmarks' ideal: equal finish on measured curves."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ideal import ideal_step_seconds

BATCH_SIZES = (8, 32, 64, 128)


def curves(*fixed_and_per_sample):
    return np.array([[a + c * b for b in BATCH_SIZES] for a, c in fixed_and_per_sample])


def test_affine_curves_finish_together():
    # T = (B + sum a/c) / sum 1/c, the closed form of equal finish.
    lines = [(0.01, 0.001), (0.01, 0.002), (0.02, 0.004)]
    expected = (200 + sum(a / c for a, c in lines)) / sum(1 / c for _, c in lines)
    assert ideal_step_seconds(BATCH_SIZES, curves(*lines), 200) == pytest.approx(expected)


def test_beyond_the_last_point_the_line_goes_on():
    assert ideal_step_seconds(BATCH_SIZES, curves((0.0, 0.001)), 500) == pytest.approx(0.5)


def test_dents_do_not_count_as_progress():
    dented = np.array([[0.1, 0.3, 0.2, 0.4]])
    assert ideal_step_seconds(BATCH_SIZES, dented, 64) == pytest.approx(0.3)
