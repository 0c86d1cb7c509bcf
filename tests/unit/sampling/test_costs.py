"""Windows cut by cost: the same global batches, each sample once, no rank far beyond its part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dbs.sampling import (
    LAYOUTS,
    CostReader,
    CountReader,
    EpochOrder,
    EpochPart,
    SampleCosts,
    cut_by_cost,
    num_steps,
)

plans = st.lists(st.integers(1, 12), min_size=1, max_size=6)
costs = st.lists(st.integers(0, 1000) | st.sampled_from([0, 1, 10**6]), min_size=1, max_size=120)


@given(costs, plans)
def test_no_rank_has_more_than_a_sample_above_its_part(units, plan):
    units = np.array(units)
    borders = cut_by_cost(units, plan)
    assert borders[0] == 0 and borders[-1] == len(units)
    counts = np.diff(borders)
    assert (counts >= (len(units) >= len(plan))).all()  # None is empty where that can be.
    weights = units if units.any() else np.ones_like(units)
    before = np.concatenate([[0], np.cumsum(weights)])[borders]
    ideal = weights.sum() * np.cumsum([0, *plan]) / sum(plan)
    assert (np.diff(before) <= np.diff(ideal) + weights.max() + 1).all()
    if counts.min() > 1:  # Nobody was given a sample only in order to have one.
        assert (np.abs(before - ideal) <= weights.max() / 2 + 1).all()


@given(plans, st.integers(1, 9), st.integers(1, 1000))
def test_equal_costs_are_cut_as_counts_are(plan, times, cost):
    counts = np.diff(cut_by_cost(np.full(times * sum(plan), cost), plan))
    assert counts.tolist() == [times * batch_size for batch_size in plan]


@given(plans, st.integers(1, 200), st.integers(0, 99), st.data())
def test_ranks_read_every_global_batch_once_in_its_order(plan, num_samples, seed, data):
    total = sum(plan)
    given = np.random.default_rng(seed).lognormal(0.0, 1.5, num_samples)
    every = SampleCosts.of(given, num_samples)
    order = EpochOrder(num_samples, seed, 3)
    used = data.draw(st.integers(0, num_samples - 1))
    part = EpochPart(num_samples, ((0, used),) if used else ())
    readers = [CostReader(order, part, rank, every) for rank in range(len(plan))]
    by_count = [CountReader(order, part, rank, LAYOUTS["windows"]) for rank in range(len(plan))]
    steps = list(range(num_steps(part.num_left, total)))
    if data.draw(st.booleans()):
        steps.reverse()
    for step in steps:
        # A plan may change at any step.
        now = plan if step % 2 else plan[::-1]
        read, expected = [], []
        for reader, other in zip(readers, by_count, strict=True):
            mine, samples = reader.rank_step(step, now), reader.samples(step, now)
            assert len(samples) >= 1
            assert mine.num_samples in (0, len(samples))
            counted = samples[: mine.num_samples]
            mean = given.mean()
            assert mine.work == pytest.approx(given[counted].sum() / mean, rel=1e-6, abs=1e-6)
            read += counted.tolist()
            count = other.rank_step(step, now)
            assert count.work == count.num_samples
            expected += other.samples(step, now)[: count.num_samples].tolist()
        assert read == expected


def test_a_rank_without_samples_fills_in_with_those_of_the_step():
    every = SampleCosts.of([1, 2, 3, 4, 5], 5)
    reader = CostReader(EpochOrder(5, None, 0), EpochPart(5), 0, every)
    mine, samples = reader.rank_step(1, (1, 3)), reader.samples(1, (1, 3))
    assert (mine.num_samples, mine.work, samples.tolist()) == (0, 0.0, [4])


def test_costs_in_any_unit_are_the_same_costs():
    given = np.random.default_rng(0).lognormal(size=1000)
    first, other = SampleCosts.of(given, 1000), SampleCosts.of((given * 64).tolist(), 1000)
    assert first.identity == other.identity
    assert first.identity != SampleCosts.of(given[::-1], 1000).identity


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([1.0, -2.0, 3.0], r"cost\[1\] is -2.0"),
        ([1.0, 2.0, np.nan], r"cost\[2\] is nan"),
        ([np.inf, 2.0, np.nan], r"cost\[0\] is inf, and 1 others"),
        ([1.0, 2.0], r"shape \(2,\) but the data set has 3 samples"),
        ([[1.0], [2.0], [3.0]], r"shape \(3, 1\)"),
        ([0, 0, 0], "0 for all samples"),
        (["a", "b", "c"], "no array of numbers"),
        (7.0, r"shape \(\)"),
    ],
)
def test_impossible_costs_are_an_error(given, text):
    with pytest.raises(ValueError, match=text):
        SampleCosts.of(given, 3)
