"""Forecasts and their yardstick, the plain autoregression."""

import numpy as np
import pytest

from hvd_dbs.simulator.autoregression import Autoregression
from hvd_dbs.simulator.prediction import PREDICTION_CASES, prediction_errors, predictors


def test_autoregression_learns_a_wave():
    """sin(wk) = 2 cos(w) sin(w(k-1)) - sin(w(k-2)): two lags and a mean say all."""
    steps = np.arange(300)
    speeds = 100 + 10 * np.sin(0.3 * steps[:, np.newaxis] + np.asarray([0.0, 1.0]))
    model = Autoregression(num_ranks=2, forgetting=1.0)
    for row in speeds[:-1]:
        model.observe(row)
    assert model.predict() == pytest.approx(speeds[-1], rel=0.003)


def test_autoregression_starts_as_the_last_value():
    model = Autoregression(num_ranks=2)
    model.observe(np.asarray([50.0, 100.0]))
    model.observe(np.asarray([50.0, 100.0]))
    assert model.predict() == pytest.approx([50.0, 100.0])


def test_nothing_seen_is_an_error():
    with pytest.raises(RuntimeError, match="call observe first"):
        Autoregression(1).predict()


def test_errors_of_all_predictors():
    errors = prediction_errors(PREDICTION_CASES["announced"]())
    assert [entry.predictor for entry in errors] == list(predictors(1))
    for entry in errors:
        assert 0.05 < entry.mean_absolute <= entry.root_mean_square < 0.5
        assert entry.at_changes > entry.root_mean_square
