"""What the comparison with the papers' results makes of its numbers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers import cannikin, dbs, faults, prediction, ratios
from benchmarks.papers.dynamic_minibatch import WAYS, Quadratic, around
from benchmarks.papers.record_loads import Step, Visits, read, write
from benchmarks.papers.rows import Row, spread_of, table
from hvd_dbs.job.journal_entries import RoundEntry


def test_faults_are_those_of_the_paper():
    lost = faults.schedule(4000, 4, seed=1)
    assert np.all((lost == 0) | ((lost >= faults.PARTS[0]) & (lost <= faults.PARTS[1])))
    for worker in lost.T:
        edges = np.flatnonzero(np.diff(worker)) + 1
        lengths = [len(part) for part in np.split(worker, edges)[1:-1] if part[0] > 0]
        assert min(lengths) == 4 and max(lengths) == 20
        quiet = np.mean(worker == 0)
        assert quiet == pytest.approx(9 / (9 + 12), abs=0.05)  # Waits of 9, lengths of 12.
    np.testing.assert_array_equal(lost, faults.schedule(4000, 4, seed=1))


@pytest.mark.parametrize(("old", "new"), [(1, 4), (4, 1)])
@pytest.mark.parametrize("way", WAYS)
def test_the_moments_are_those_of_the_updates(old, new, way):
    """Against many noisy runs of the update itself, from the same stationary state."""
    problem = Quadratic(momentum=0.8, rate=0.05, curvatures=(0.5, 1.0))
    multipliers = [float(old)] * 300 + [float(new)] * 5
    batches = [float(old)] * 300 + [float(new)] * 5
    exact = problem.losses(multipliers, batches)[-1]
    random, h = np.random.default_rng(0), np.array(problem.curvatures)
    w, v = np.zeros((2, 40_000, 2))
    for multiplier, batch in zip(multipliers[:-1], batches[:-1], strict=True):
        v = problem.momentum * v + h * w + random.standard_normal(w.shape) / batch**0.5
        w = w - problem.rate * multiplier * v
    assert np.mean(np.sum(h * w**2, axis=1)) / 2 == pytest.approx(exact, rel=0.03)
    peak, _ = around(Quadratic(), old, new, way, 50)
    is_hurt = way == ("at once" if new > old else "ramp both ways")
    assert (peak > 1.015) == is_hurt


def test_seconds_to_an_accuracy():
    assert dbs.seconds_to([0.2, 0.8, 0.9], [3.0, 2.0, 1.0], 0.8) == 5.0
    assert np.isnan(dbs.seconds_to([0.2, 0.8], [3.0, 2.0], 0.95))


def test_time_saved_is_by_epoch_and_leaves_the_start_out():
    measured = {
        "epoch_seconds": {"even": [4.0, 4.0, 4.0, 6.0], "dbs": [4.0, 9.0, 3.0, 3.0]},
        "accuracy": {"even": [0.5, 0.6, 0.95, 0.96], "dbs": [0.5, 0.95, 0.96, 0.97]},
    }
    saved, *accuracies = dbs.rows_of(measured, with_faults=False, wanted=0.9)
    assert saved.here == "38%" and saved.spread == "31% to 44%, 2 epochs"
    assert [row.here.split(" s ")[0] for row in accuracies] == ["12", "13"]


def test_a_prediction_is_compared_with_the_next_round_of_its_plan():
    def a_round(step, batch_sizes, seconds, plan, predicted):
        known = (0.1, 0.1), (0.0, 0.0), seconds, batch_sizes, plan, "", (1.0, predicted)
        return RoundEntry(0, step, batch_sizes, *known)

    rounds = [
        a_round(4, (8, 8), 1.0, (8, 8), 1.0),
        a_round(8, (8, 8), 3.0, (8, 8), 1.0),  # Of the first epoch.
        a_round(4, (8, 8), 2.0, (10, 6), 0.8),
        a_round(8, (8, 8), 9.0, (10, 6), 0.8),  # The plan did not hold yet.
        a_round(8, (10, 6), 1.0, (10, 6), 0.8),
        a_round(9, (10, 6), np.nan, (10, 6), 0.8),  # A first step.
    ]
    assert list(cannikin.longer_than_predicted(rounds, 1)) == pytest.approx([1.0, 0.25])


def test_a_record_comes_back_as_it_was_written(tmp_path):
    steps = [Step(0.5, 0.25, 0.125, 0.0), Step(1.5, float("nan"), 0.5, 1.0)]
    write(steps, tmp_path / "loads.csv")
    again = read(tmp_path / "loads.csv")
    assert again[0] == steps[0] and np.isnan(again[1].cpu_load)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="record_loads"):
        read(tmp_path / "other.csv")


def test_visits_alternate_and_last_as_long_as_they_should():
    visits = Visits(quiet_seconds=20.0, busy_seconds=10.0, seed=0)
    there = np.array([visits.advance(0.1 * k) for k in range(400_000)])
    assert not there[0] and there.mean() == pytest.approx(1 / 3, abs=0.03)


def test_no_forecast_sees_the_future_and_its_error_is_taken_later():
    """A forecast after step k must not change when later speeds do."""
    random = np.random.default_rng(0)
    speeds = 1 + 0.1 * random.standard_normal(80)
    changed = np.concatenate([speeds[:50], 2 * speeds[50:]])
    for horizon in (1, 3):
        a, b = (prediction.by_autoregression(s, horizon)[:50] for s in (speeds, changed))
        np.testing.assert_array_equal(a, b)
    steps = [Step(1 / speed, 0.0, 0.0, 0.0) for speed in speeds]
    later = np.concatenate([speeds[3:], [np.nan] * 3])
    found = prediction.errors(steps, {"knows": later, "last": speeds}, 3, 40)
    assert np.all(found["knows"] < 1e-12) and np.all(found["last"] > 0.01)


def test_faults_lengthen_the_simulated_steps():
    plain, faulty = (ratios.dbs_scenario(3, with_faults) for with_faults in (False, True))
    seconds = [ratios.seconds_of(one, ("even",))["even"] for one in (plain, faulty)]
    assert 1.1 < seconds[1] / seconds[0] < 1.6


def test_rows_are_a_table():
    here, spread = spread_of([1.0, 2.0, 3.0], ".1f", "rounds")
    text = table([Row("speed", "up to 2", here, spread, "pair")])
    assert text.splitlines()[-1] == "| speed | up to 2 | 2.0 | 1.5 to 2.5, 3 rounds | pair |"
