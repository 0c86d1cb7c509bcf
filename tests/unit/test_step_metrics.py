"""The numbers of a job that all ranks know."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from hvd_dbs.job.step_metrics import MeanMetrics, StepMetrics


def seen(busy_seconds, step_seconds):
    """A round of which only this is known."""
    others = ("overlap_seconds", "last_bucket_seconds", "negotiation_seconds")
    return SimpleNamespace(
        busy_seconds=busy_seconds,
        step_seconds=step_seconds,
        first_bucket_seconds=(),
        **dict.fromkeys(others, math.nan),
    )


def test_a_step_is_computing_waiting_and_the_rest():
    metrics = StepMetrics.of(seen([0.2, 0.4], 0.5))
    assert metrics.efficiency == pytest.approx(0.6)  # Of 0.5 s, ranks compute 0.3 s.
    assert metrics.waiting == pytest.approx(0.2)
    assert metrics.step_seconds == 0.5


@pytest.mark.parametrize(
    "metrics",
    [StepMetrics(0.123456, 0.2, 12.345678), StepMetrics(0.0, 0.0, 0.000001)],
)
def test_they_travel_as_whole_numbers(metrics):
    assert all(type(number) is int for number in metrics.whole_numbers)
    assert StepMetrics.of_whole_numbers(metrics.whole_numbers) == metrics


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.5, 1e300])
def test_what_is_unknown_or_absurd_travels_as_unknown(value):
    there = StepMetrics.of_whole_numbers(StepMetrics(value, value, value).whole_numbers)
    assert all(math.isnan(one) for one in vars(there).values())
    unknown = StepMetrics.of(seen([math.nan, math.nan], math.nan))
    assert set(unknown.whole_numbers) == {-1}


def test_the_mean_of_an_epoch_counts_steps_and_how_long_they_are():
    mean = MeanMetrics()
    assert math.isnan(mean.mean.efficiency)
    mean.add(StepMetrics(0.5, 0.5, 3.0), 1)
    mean.add(StepMetrics(1.0, 0.0, 1.0), 3)
    assert mean.mean == StepMetrics(0.75, 0.25, 1.5)
    mean.add(StepMetrics(), 100)  # Nothing was measured.
    assert mean.mean == StepMetrics(0.75, 0.25, 1.5)
    mean.restart()
    assert mean.mean == StepMetrics(0.75, 0.25, 1.5)  # Until a round is over.
    mean.add(StepMetrics(0.9, 0.1, 2.0), 5)
    assert mean.mean == StepMetrics(0.9, 0.1, 2.0)
