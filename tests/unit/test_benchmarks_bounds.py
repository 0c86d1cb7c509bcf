"""The benchmark of a fast rank with little memory: what the simulator makes of its curves."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bounds.__main__ import ideal_seconds, rows_of, simulated_seconds
from benchmarks.bounds.ways import EVEN, NO_BOUND, SAMPLES_PER_RANK, WAYS

FIXED, PER_SAMPLE = 0.008, np.array([0.0005, 0.002, 0.002, 0.002])
BOUND, WHOLE, WITH_REST = (way.name for way in WAYS[1:4])


@pytest.fixture(scope="module")
def measured():
    points = np.array([[150, 300, 450, 600, 750]] + 3 * [[40, 80, 110, 150, 200]])
    curve = FIXED + PER_SAMPLE[:, None] * points
    steps = {way.name: 5 * [[9.0, 0.2, 0.2]] for way in WAYS}
    steps[NO_BOUND.name] = 5 * [[9.0, 0.1, 0.1]]
    return {
        "global_batch_size": 4 * SAMPLES_PER_RANK,
        "curve_points": points.tolist(),
        "curve_seconds": {"calm": [curve.tolist()]},
        "lengths": {"steps": 3},
        "rounds": steps,
        "plans": {way.name: [[1, 2, 3, 4]] for way in WAYS},
    }


def test_a_bound_keeps_the_even_split_and_micro_batches_do_not(measured):
    even = FIXED + PER_SAMPLE[1] * SAMPLES_PER_RANK
    ideal = ideal_seconds(measured)
    assert ideal == pytest.approx(FIXED + 4 * SAMPLES_PER_RANK / (1 / PER_SAMPLE).sum(), rel=0.01)
    found = simulated_seconds(measured)
    assert found[EVEN.name] == pytest.approx(even, rel=0.1)
    assert found[BOUND] == pytest.approx(even, rel=0.1)
    assert found[NO_BOUND.name] == pytest.approx(ideal, rel=0.1)
    # Of 24 small micro-batches the fast rank takes 12 and the others 4, and each starts anew.
    assert found[WHOLE] == pytest.approx(4 * (FIXED + 32 * PER_SAMPLE[1]), rel=0.08)
    # Of large ones the fast rank takes three; the others' local batches are less than one.
    assert ideal < found[WITH_REST] < found[WHOLE] < 0.9 * even


def test_the_table_has_what_was_measured_beside_what_was_simulated(measured):
    rows = list(rows_of(measured))
    assert [row.split(" | ")[0] for row in rows[:-1]] == [f"| {way.name}" for way in WAYS]
    cells = rows[-2].strip("| ").split(" | ")
    assert cells[2] == "100 (100 - 100)" and cells[4] == "2.00 (2.00 - 2.00)"
    assert cells[5] == "1, 2, 3, 4"
    assert rows[-1].startswith("| the ideal by the curves | ")
