"""Ranks with multiples of their own: plans in whole micro-batches of different sizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dbs.balancing import Bounds, Controller, strategies
from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.multiples import apportion_multiples
from hvd_dbs.balancing.plan import Plan, Problem

RANKS = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 4, 8]),
        st.integers(0, 6),
        st.none() | st.integers(0, 20),
        st.floats(0.1, 10),
    ),
    min_size=2,
    max_size=4,
)


def _sums(multiples, low, high, total):
    """All sums of batch sizes up to a total, by trying them out."""
    choices = [
        [size for size in range(0, total + 1, multiple) if size >= least and size <= most]
        for multiple, least, most in zip(multiples, low, high, strict=True)
    ]
    return {sum(sizes) for sizes in itertools.product(*choices)}


@given(RANKS, st.integers(1, 40))
def test_a_split_is_found_where_there_is_one(ranks, total):
    multiples, low, room, shares = zip(*ranks, strict=True)
    high = [None if more is None else least + more for least, more in zip(low, room, strict=True)]
    bounds = Bounds.of(len(ranks), low, high, multiples)
    most = [total if one is None else one for one in high]
    if total not in _sums(multiples, low, most, total):
        with pytest.raises(ValueError, match=r"global_batch_size|min_batch_size"):
            apportion_multiples(total, shares, bounds)
        return
    split = apportion_multiples(total, shares, bounds)
    assert sum(split) == total
    assert all(
        size % multiple == 0 and least <= size <= limit
        for size, multiple, least, limit in zip(split, multiples, low, most, strict=True)
    )
    assert bounds.allow(split)


def test_shares_are_met_to_half_of_a_multiple_where_others_have_small_ones():
    bounds = Bounds.of(4, multiple_of=(32, 8, 8, 1))
    split = apportion_multiples(256, [3.0, 2.0, 1.0, 2.0], bounds)
    np.testing.assert_array_less(np.abs(np.subtract(split, [96, 64, 32, 64])), [17, 5, 5, 21])
    assert apportion_multiples(256, [96, 64, 32, 64], bounds) == (96, 64, 32, 64)


def test_multiples_that_do_not_divide_each_other_are_refused():
    with pytest.raises(ValueError, match="4 does not divide 6"):
        Bounds.of(2, multiple_of=(4, 6))
    with pytest.raises(ValueError, match="multiple_of=\\(2, 4, 8\\) has 3 entries for 2 ranks"):
        Bounds.of(2, multiple_of=(2, 4, 8))
    assert Bounds.of(2, multiple_of=(4, 4)) == Bounds.of(2, multiple_of=4)


def test_a_sum_that_no_plan_has_is_refused_before_training():
    bounds = Bounds.of(3, maximum=[8, None, None], multiple_of=(8, 32, 32))
    with pytest.raises(ValueError, match="is no sum of local batch sizes within their bounds"):
        Controller(strategies.dbs(), 80, bounds)
    with pytest.raises(ValueError, match="Rank 1 has no multiple of 32 between"):
        Controller(strategies.dbs(), 48, Bounds.of(2, 1, [None, 16], (8, 32)))


@pytest.mark.parametrize("name", [name for name in strategies.PRESETS if name != "static"])
def test_every_strategy_plans_in_whole_multiples(name):
    bounds = Bounds.of(3, minimum=1, multiple_of=(16, 4, 4))
    controller = Controller(strategies.resolve(name, None), 96, bounds, num_rows=3)
    per_sample = np.array([0.001, 0.002, 0.004])
    plans = []
    for _ in range(12):
        sizes = controller.plan.samples
        records = controller.observe(Measurement.of(sizes, 0.001 + sizes * per_sample))
        plans.append(controller.decide(records).plan)
    assert all(bounds.allow(plan.samples) and plan.global_batch_size == 96 for plan in plans)
    if name not in (
        "even",
        "observe",
        "lb_bsp_gpu",
    ):  # A move of the latter is less than 16 samples.
        assert plans[-1].batch_sizes[0] >= 48 > 24 > plans[-1].batch_sizes[2]


def test_a_rounded_plan_that_is_no_faster_is_not_taken():
    bounds = Bounds.of(2, multiple_of=(32, 8))
    curves = AffineCurves(fixed=np.zeros(2), per_sample=np.array([1.0, 1.1]))
    problem = Problem(64, bounds, Plan((32, 32)))
    assert problem.in_multiples(Plan((40, 24)), curves) is problem.current
    faster = AffineCurves(fixed=np.zeros(2), per_sample=np.array([1.0, 9.0]))
    assert problem.in_multiples(Plan((56, 8)), faster).batch_sizes == (64, 0)
