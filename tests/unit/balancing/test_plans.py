"""Apportionment, bounds, plans and measurements: the exact parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hvd_dbs.balancing import Bounds, Measurement, Plan, apportion
from hvd_dbs.balancing.measurement import typical_seconds

shares = st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(lambda s: max(s) > 1e-3)


class TestApportion:
    def test_golden_example_of_the_dbs_paper(self):
        assert apportion(64, [13.7, 16.5, 19.6, 14.2]) == (14, 16, 20, 14)

    @given(total=st.integers(0, 5000), weights=shares)
    def test_sum_is_exact_and_quotas_are_kept(self, total, weights):
        result = np.array(apportion(total, weights))
        assert result.sum() == total
        quotas = total * np.array(weights) / sum(weights)
        assert np.all(np.abs(result - quotas) < 1 + 1e-6)

    @given(data=st.data(), weights=shares)
    def test_bounds_and_multiples(self, data, weights):
        size = len(weights)
        low = data.draw(st.lists(st.integers(0, 20), min_size=size, max_size=size))
        room = data.draw(st.lists(st.integers(0, 50), min_size=size, max_size=size))
        unit = data.draw(st.integers(1, 5))
        high = [a + r for a, r in zip(low, room, strict=True)]
        bounds = Bounds.of(size, low, high, unit)
        least, most = bounds.in_units(10**6)
        assume(np.all(least <= most))
        total = unit * data.draw(st.integers(int(least.sum()), int(most.sum())))
        result = apportion(total, weights, minimum=low, maximum=high, multiple_of=unit)
        assert sum(result) == total
        for samples, a, b in zip(result, low, high, strict=True):
            assert a <= samples <= b and samples % unit == 0

    @given(total=st.integers(1, 400), weights=st.lists(st.integers(1, 9), min_size=2, max_size=8))
    def test_larger_share_never_gets_less(self, total, weights):
        result = apportion(total, weights)
        for i, a in enumerate(weights):
            for j, b in enumerate(weights):
                assert a <= b or result[i] >= result[j]

    @given(weights=shares, power=st.integers(-30, 30))
    def test_scaling_shares_changes_nothing(self, weights, power):
        assert apportion(97, weights) == apportion(97, [w * 2.0**power for w in weights])

    def test_ties_go_to_the_lowest_rank(self):
        assert apportion(5, [1, 1, 1]) == (2, 2, 1)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ((4, []), "one share per rank"),
            ((4, [1, -1]), "not negative"),
            ((4, [1, float("nan")]), "finite"),
            ((4, [0, 0]), "all zero"),
            ((-1, [1, 1]), "must not be negative"),
        ],
    )
    def test_errors(self, arguments, says):
        with pytest.raises(ValueError, match=says):
            apportion(*arguments)


class TestBounds:
    def test_error_names_bounds_and_sum(self):
        with pytest.raises(ValueError, match=r"\(64, 64, 32, 16\) allows at most 176 .*=256"):
            Bounds.of(4, 1, [64, 64, 32, 16]).check(256)

    @pytest.mark.parametrize(
        ("bounds", "total", "says"),
        [
            (Bounds.of(4, 10), 32, "needs at least 40"),
            (Bounds.of(4, 1), 3, "not one sample for each of the 4 ranks. Use at least 4"),
            (Bounds.of(4, 1, None, 8), 24, "multiples of 8 needs at least 32"),
            (Bounds.of(4, 1), -3, "global_batch_size=-3 must not be negative"),
            (Bounds.of(2, 0, None, 4), 30, "28 or 32"),
            (Bounds.of(2, 1), 2**70, r"=1180591620717411303424 is more than 2147483648 samples"),
            (Bounds.of(2, 2**70), 64, "needs at least .* but global_batch_size=64"),
            (Bounds.of(2, 0, 2**31), 2**31 + 1, "is more than"),
            (Bounds.of(2, [5, 0], [7, 99], 4), 64, "no multiple of 4 between"),
        ],
    )
    def test_impossible_sums(self, bounds, total, says):
        with pytest.raises(ValueError, match=says):
            bounds.check(total)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ((2, [1, 2, 3]), "3 entries for 2 ranks"),
            ((2, 8, 4), "below its min_batch_size"),
            ((2, -1), "must not be negative"),
            ((2, 0, None, 0), "at least 1"),
            ((2, 0, None, 2**70), "at most 2147483648"),
        ],
    )
    def test_impossible_bounds(self, arguments, says):
        with pytest.raises(ValueError, match=says):
            Bounds.of(*arguments)

    def test_the_largest_sums(self):
        Bounds.of(4, 0, 2**70).check(2**31)
        size, most = 2**14, 2**31
        plan = Plan.proportional(most, [1.0] * size, Bounds.of(size, 1))
        assert plan.global_batch_size == most and set(plan.batch_sizes) == {2**17}

    def test_units_are_the_caller_s_own(self):
        bounds = Bounds.of(2, 1)
        bounds.in_units(8)[0][:] = 99
        assert bounds.in_units(8)[0].tolist() == [1, 1]

    def test_one_sum_that_is_possible_says_nothing_of_another(self):
        bounds = Bounds.of(2, minimum=2, maximum=4)
        for _ in range(2):
            bounds.check(8)
            with pytest.raises(ValueError, match="at most 8 samples"):
                bounds.check(9)


class TestPlan:
    def test_shares(self):
        plan = Plan((1, 3))
        assert (plan.size, plan.global_batch_size, plan.shares) == (2, 4, (0.25, 0.75))

    def test_equal_plans_are_equal(self):
        one, other = Plan((1, 3)), Plan((1, 3))
        assert one.samples.tolist() == [1.0, 3.0]  # Cached in one of them only.
        assert one == other and hash(one) == hash(other)
        with pytest.raises(ValueError, match="read-only"):
            one.samples[0] = 7

    def test_made_of_an_array(self):
        batch_sizes = np.array([1, 3])
        plan = Plan.of(batch_sizes)
        batch_sizes[0] = 7
        assert plan == Plan((1, 3)) and plan.samples.tolist() == [1.0, 3.0]
        assert all(type(samples) is int for samples in plan.batch_sizes)
        with pytest.raises(ValueError, match="read-only"):
            plan.samples[0] = 7
        with pytest.raises(ValueError, match="rank 1 must not be negative"):
            Plan.of(np.array([1, -1]))

    def test_long_plans_are_cut(self):
        assert str(Plan((1,) * 99)).count("1") == 12 and str(Plan((1, 2))) == "[1, 2]"

    @pytest.mark.parametrize("batch_sizes", [(), (0, 0), (1, -1)])
    def test_errors(self, batch_sizes):
        with pytest.raises(ValueError, match=r"rank|sample"):
            Plan(batch_sizes)


class TestMeasurement:
    def test_usable(self):
        seconds = [0.1, float("nan"), float("inf"), -0.1, 0.0, 1e9, 1e-310, 0.1]
        usable = Measurement.of([1, 1, 1, 1, 1, 1, 1, 0], seconds).usable
        assert usable.tolist() == [True, *(7 * [False])]

    def test_fields_not_given_are_unknown(self):
        measurement = Measurement.of([1, 2], [0.1, 0.2], num_steps=[5, 5])
        assert measurement.num_steps.tolist() == [5, 5]
        assert np.isnan(measurement.overlap_seconds).all()

    def test_errors(self):
        with pytest.raises(ValueError, match="one entry per rank"):
            Measurement.of([1, 2], [0.1])
        with pytest.raises(TypeError, match="no field temperature"):
            Measurement.of([1], [0.1], temperature=[60.0])

    @pytest.mark.parametrize(
        ("steps", "expected"),
        [
            ([9.0, 2.0, 1.0, 1.0, 1.1, 40.0, 0.9], 1.0),  # warm-up and a pause left out
            ([3.0, 1.0], 1.0),  # one step is left at least
            ([np.nan, np.nan, np.nan], np.nan),
            ([], np.nan),
        ],
    )
    def test_typical_seconds(self, steps, expected):
        np.testing.assert_allclose(typical_seconds(np.array(steps)), expected)
