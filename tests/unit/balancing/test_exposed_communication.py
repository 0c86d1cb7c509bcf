"""Communication that sticks out of computing: what a step takes, and what `adaptive` does."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Controller, Measurement, strategies
from hvd_dbs.balancing.exposed_communication import ExposedCommunication
from hvd_dbs.balancing.order_statistics import QUARTILE, lower_value


def test_a_rank_finishes_when_both_are_done():
    nan = np.nan
    all_ranks = ExposedCommunication(
        np.array([0.5, 0.5, nan, 1.0, 0.5]), np.array([3.0, nan, 3.0, 3.0, 0.0])
    )
    ranks, communication = all_ranks.known()
    assert ranks.tolist() == [0, 3]
    seconds, elasticity, fixed = communication.finish(np.array([[4.0, 4.0], [8.0, nan]]))
    np.testing.assert_array_equal(seconds, [[5, 7], [8, nan]])
    np.testing.assert_array_equal(elasticity, [[2 / 5, 4 / 7], [1, 1]])
    assert fixed.tolist() == [3, 3]


def rounds(controller, overlap_seconds, num_rounds, noise=0.03):
    """Rounds of five steps on ranks of which half are three times slower; samples by rank."""
    rng, size = np.random.default_rng(3), controller.size
    slower = np.where(np.arange(size) < size // 2, 1.0, 3.0)
    for _ in range(num_rounds):
        samples = controller.plan.samples
        busy = 0.001 * (4 + samples) * slower
        busy = busy * (1 + noise * rng.standard_normal((5, size)))
        measurement = Measurement.of(
            samples,
            busy.mean(axis=0),
            num_steps=np.full(size, 5.0),
            quartile_seconds=lower_value(busy, QUARTILE),
            first_bucket_seconds=0.5 * busy.mean(axis=0),
            overlap_seconds=np.full(size, overlap_seconds),
        )
        controller.decide(controller.observe(measurement))
    return controller.plan.samples


@pytest.mark.parametrize("overlap_seconds", [0.0, 0.1, 0.5])
def test_ranks_are_balanced_however_long_communication_takes(overlap_seconds):
    """Half of their busy time counts where it sticks out: the same plan is the best then."""
    controller = Controller(strategies.adaptive(), 128, Bounds.of(4, 1), 4)
    samples = rounds(controller, overlap_seconds, num_rounds=12)
    busy = (4 + samples) * [1.0, 1.0, 3.0, 3.0]
    assert busy.max() / busy.min() < 1.3 and samples.min() < 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"overlap_seconds": [np.inf] * 4},
        {"first_bucket_seconds": [9.0] * 4},
        {"num_steps": [0] * 4, "first_bucket_seconds": [0.0359] * 4},
    ],
)
def test_what_is_absurd_or_of_first_steps_is_not_noted(wrong):
    model = strategies.adaptive().model
    busy, samples = np.full(4, 0.036), np.full(4, 32.0)
    known = {
        "num_steps": [5] * 4,
        "first_bucket_seconds": 0.5 * busy,
        "overlap_seconds": [0.1] * 4,
    }
    before = model.update(model.init(4), Measurement.of(samples, busy, **known))
    after = model.update(before, Measurement.of(samples, busy, **{**known, **wrong}))
    seconds = model.curves(model.record(after)).seconds(samples)
    assert seconds == pytest.approx(0.118, rel=0.005)


def test_records_stay_as_they_are():
    model = strategies.adaptive().model
    timed = {"first_bucket_seconds": [0.02], "overlap_seconds": [0.1]}
    records = model.record(model.update(model.init(1), Measurement.of([32], [0.04], **timed)))
    before = records.copy()
    assert model.curves(records).deviations(np.array([32.0])) > 0
    np.testing.assert_array_equal(records, before)


def test_nothing_is_moved_where_it_is_worth_less_than_a_change_costs():
    controller = Controller(strategies.adaptive(), 128, Bounds.of(4, 1), 4)
    assert rounds(controller, overlap_seconds=20.0, num_rounds=12).tolist() == [32] * 4
