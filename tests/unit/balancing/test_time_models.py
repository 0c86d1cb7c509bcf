"""What each time model is for."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Measurement
from hvd_dbs.balancing.time_models.affine import Affine
from hvd_dbs.balancing.time_models.ewma import Ewma
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.balancing.time_models.line_fit import add_point, line, no_sums
from hvd_dbs.balancing.time_models.narx import Narx
from hvd_dbs.balancing.time_models.overlap_affine import OverlapAffine
from hvd_dbs.balancing.time_models.visited_points import VisitedPoints
from hvd_dbs.balancing.time_models.windowed_mean import WindowedMean


def fold(model, rounds, state=None, **fields):
    """Rounds of one rank: (batch size, seconds) each."""
    state = model.init(1) if state is None else state
    for b, t in rounds:
        state = model.update(state, Measurement.of([b], [t], **fields))
    return state


def seconds_at(model, state, batch_size):
    curves = model.curves(model.record(state))
    return float(curves.seconds(np.array([float(batch_size)]))[0])


def usual_at(model, state, batch_size):
    """Log of the seconds of ranks that nothing disturbs."""
    usual = model.curves(model.record(state)).usual_log_seconds(np.array([float(batch_size)]))
    return usual if len(usual) > 1 else float(usual[0])


class TestSmoothing:
    def test_windowed_mean_is_of_the_last_rounds(self):
        model = WindowedMean(window=3)
        state = fold(model, [(10, 9.0), (10, 1.0), (10, 2.0), (10, 3.0)])
        assert seconds_at(model, state, 10) == pytest.approx(2.0)

    def test_windowed_mean_starts_anew_at_another_batch_size(self):
        model = WindowedMean(window=3)
        state = fold(model, [(10, 1.0), (10, 2.0), (20, 5.0)])
        assert seconds_at(model, state, 20) == pytest.approx(5.0)

    def test_ewma_since_the_last_change(self):
        model = Ewma(weight=0.5)
        assert seconds_at(model, fold(model, [(10, 1.0), (10, 2.0), (10, 3.0)]), 10) == 2.25
        assert seconds_at(model, fold(model, [(10, 1.0), (10, 2.0), (20, 3.0)]), 20) == 3.0

    def test_last_round_forgets(self):
        model = LastRound()
        assert seconds_at(model, fold(model, [(10, 1.0), (10, 3.0)]), 10) == 3.0
        assert np.isnan(seconds_at(model, fold(model, [(10, 1.0), (10, -3.0)]), 10))

    @pytest.mark.parametrize(
        "make",
        [lambda: WindowedMean(0), lambda: Ewma(0), lambda: VisitedPoints(1), lambda: Narx(3)],
    )
    def test_impossible_settings(self, make):
        with pytest.raises(ValueError, match="="):
            make()


class TestLine:
    def test_finds_the_line(self):
        sums = no_sums(2)
        for b in (10.0, 20.0, 40.0, 30.0):
            at = np.full(2, b)
            sums = add_point(sums, at, np.array([1.0, 0.1]) + 0.02 * at, np.ones(2), 1.0)
        found = line(sums)
        np.testing.assert_allclose(found.per_sample, 0.02, rtol=0.03)
        np.testing.assert_allclose(found.seconds(np.full(2, 25.0)), [1.5, 0.6], rtol=0.01)

    def test_one_batch_size_means_through_the_origin(self):
        found = line(add_point(no_sums(1), np.array([8.0]), np.array([4.0]), np.ones(1), 1.0))
        assert found.fixed.tolist() == [0.0] and found.per_sample.tolist() == [0.5]

    def test_never_falls(self):
        sums = no_sums(1)
        for b, t in ((10.0, 3.0), (20.0, 1.0)):
            sums = add_point(sums, np.array([b]), np.array([t]), np.ones(1), 1.0)
        assert line(sums).per_sample[0] > 0 and line(sums).fixed[0] >= 0


class TestAffine:
    steady = tuple((b, 0.1 + 0.01 * b) for b in (20, 30, 40, 25, 35, 30, 20, 40))

    def test_an_outlier_never_counts(self):
        model = Affine()
        state = fold(model, [*self.steady, (30, 4.0)])
        assert seconds_at(model, state, 30) == pytest.approx(0.4, rel=0.03)
        state = fold(model, self.steady, state)
        assert seconds_at(model, state, 30) == pytest.approx(0.4, rel=0.03)

    def test_a_change_is_learnt_in_two_rounds(self):
        model = Affine()
        state = fold(model, [*self.steady, (30, 0.8), (30, 0.8)])
        assert seconds_at(model, state, 30) == pytest.approx(0.8, rel=0.03)
        assert seconds_at(model, state, 40) == pytest.approx(1.0, rel=0.05)


class TestOverlapAffine:
    def test_the_slower_of_two_lines(self):
        """a = 2b + 10, P = 6b + 20 (ms), gamma = 0.25, T_o = 200 ms: lines cross at b = 41.1."""
        model = OverlapAffine()
        state = model.init(1)
        for b in (20, 40, 60, 30, 50):
            first, busy = (2 * b + 10) + 0.25 * (6 * b + 20), 8 * b + 30
            state = model.update(
                state,
                Measurement.of(
                    [b], [busy / 1e3], first_bucket_seconds=[first / 1e3], overlap_seconds=[0.2]
                ),
            )
        assert seconds_at(model, state, 20) == pytest.approx((3.5 * 20 + 15) / 1e3 + 0.2, rel=0.02)
        assert seconds_at(model, state, 80) == pytest.approx((8 * 80 + 30) / 1e3, rel=0.02)

    def test_computing_alone_where_nothing_else_is_measured(self):
        model = OverlapAffine()
        state = fold(model, [(20, 0.19), (40, 0.35), (30, 0.27)])
        assert seconds_at(model, state, 50) == pytest.approx(0.43, rel=0.02)


class TestVisitedPoints:
    def test_a_tooth_stays_a_tooth(self):
        """48 takes 40 ms, 49 takes 50: both are remembered, neither bends the other."""
        model = VisitedPoints()
        state = fold(model, [(48, 0.040), (49, 0.050), (48, 0.040), (49, 0.050)] * 3)
        assert seconds_at(model, state, 48) == pytest.approx(0.040, rel=0.02)
        assert seconds_at(model, state, 49) == pytest.approx(0.050, rel=0.02)

    def test_another_pace_is_told_by_coming_back(self):
        model = VisitedPoints()
        seen = [(48, 0.040), (49, 0.050), (32, 0.030)] * 3
        state = fold(model, [*seen, (32, 0.090), (32, 0.090)])
        assert seconds_at(model, state, 32) == pytest.approx(0.090, rel=0.03)
        # At other batch sizes a very different pace may be another curve: only the slope is kept.
        assert seconds_at(model, state, 48) == pytest.approx(0.130, rel=0.05)
        assert state["batch_size"][0][np.isfinite(state["batch_size"][0])].tolist() == [32]

    def test_a_small_change_of_pace_keeps_the_teeth(self):
        model = VisitedPoints()
        state = fold(model, [(48, 0.040), (49, 0.050), (32, 0.030)] * 4, num_steps=[5])
        state = fold(model, [(32, 0.030 * 1.12)] * 4, state, num_steps=[5])
        assert seconds_at(model, state, 48) == pytest.approx(0.040 * 1.12, rel=0.03)
        assert seconds_at(model, state, 49) == pytest.approx(0.050 * 1.12, rel=0.03)

    def test_the_first_step_of_a_batch_size_is_not_its_pace(self):
        model = VisitedPoints()
        state = fold(model, [(32, 0.030), (40, 0.038)] * 4 + [(40, 0.038), (32, 0.045)])
        assert seconds_at(model, state, 32) == pytest.approx(0.030, rel=0.02)

    @pytest.mark.parametrize(
        ("steps", "seconds", "known"),
        [(1, 0.052, 0.048), (1, 0.064, 0.0592), (1, 0.046, 0.046), (5, 0.052, 0.052)],
    )
    def test_a_first_step_alone_may_be_slower_than_the_others(self, steps, seconds, known):
        """48 ms are expected at 48 samples; a first step may take 10 % longer."""
        model = VisitedPoints()
        state = fold(model, [(32, 0.032), (40, 0.040)] * 8, num_steps=[5])
        expected = seconds_at(model, state, 48)
        assert expected == pytest.approx(0.048, rel=0.02)
        state = fold(model, [(48, seconds)], state, num_steps=[steps])
        assert state["seconds"][0][state["batch_size"][0] == 48] == pytest.approx(known, rel=0.02)
        state = fold(model, [(48, 0.050)] * 2, state, num_steps=[5])
        assert seconds_at(model, state, 48) == pytest.approx(0.050, rel=0.02)

    def test_a_pause_is_forgotten(self):
        model = VisitedPoints()
        state = fold(model, [(32, 0.030)] * 4 + [(32, 0.9), (32, 0.030)])
        assert seconds_at(model, state, 32) == pytest.approx(0.030, rel=0.01)

    def test_three_steps_are_no_pause_however_long(self):
        """A round's mean leaves single steps of over three times the median out already."""
        model = VisitedPoints()
        known = fold(model, [(32, 0.030)] * 4, num_steps=[5])
        for steps, seconds in ((2, 0.030), (3, 0.150)):
            state = fold(model, [(32, 0.150)], known, num_steps=[steps])
            assert seconds_at(model, state, 32) == pytest.approx(seconds, rel=0.02)

    def test_drift_is_followed_at_all_points(self):
        model = VisitedPoints()
        state = fold(model, [(48, 0.040), (32, 0.030)] * 4)
        state = fold(model, [(32, 0.030 * 1.004**k) for k in range(60)], state)
        assert seconds_at(model, state, 32) == pytest.approx(0.030 * 1.004**60, rel=0.03)
        assert seconds_at(model, state, 48) == pytest.approx(0.040 * 1.004**60, rel=0.15)

    def test_the_usual_pace_outlives_disturbances(self):
        """Busy half of the time, at batch sizes that change with it, and busy at the start."""
        model, rng, state = VisitedPoints(), np.random.default_rng(0), None
        for busy in [True, False] * 4:
            for _ in range(20):
                b = int(rng.integers(12, 16) if busy else rng.integers(28, 34))
                seconds = 0.001 * b * (2.0 if busy else 1.0) * rng.normal(1.0, 0.03)
                state = fold(model, [(b, seconds)], state)
        assert usual_at(model, state, 31) == pytest.approx(np.log(0.031), abs=0.01)

    def test_the_usual_pace_is_the_mean_of_many_steps(self):
        """Few of 200 ranks are taken to be 1.5 % faster or slower than they are."""
        model, rng = VisitedPoints(), np.random.default_rng(0)
        state, ranks = model.init(200), np.full(200, 32.0)
        for step in range(300):
            slow = np.where((step + np.arange(200)) % 80 < 20, 1.5, 1.0)
            seconds = 0.032 * slow * rng.normal(1.0, 0.05, 200)
            state = model.update(state, Measurement.of(ranks, seconds))
        off = np.abs(usual_at(model, state, 32) - np.log(0.032))
        assert np.mean(off < 0.015) > 0.95 and off.max() < 0.06

    @pytest.mark.parametrize("factor, before, after", [(2.0, 300, 301), (0.5, 1, 2)])
    def test_another_pace_becomes_usual_when_it_has_lasted(self, factor, before, after):
        model = VisitedPoints()
        known = fold(model, [(32, 0.032)] * 20)
        for steps, expected in ((before, 0.032), (after, 0.032 * factor)):
            state = fold(model, [(32, 0.032 * factor)] * steps, known)
            assert usual_at(model, state, 32) == pytest.approx(np.log(expected), abs=0.01)

    def test_remembers_the_last_batch_sizes(self):
        model = VisitedPoints(capacity=4)
        state = fold(model, [(b, 0.001 * b) for b in range(10, 20)])
        assert sorted(state["batch_size"][0]) == [16, 17, 18, 19]

    def test_noise_pools_on_a_line_but_not_on_teeth(self):
        """One noisy visit is drawn to a straight line, but a tooth is not drawn away."""
        rng = np.random.default_rng(0)
        straight, toothed = VisitedPoints(), VisitedPoints()
        sizes = rng.integers(40, 60, 60)
        noise = 1 + 0.02 * rng.standard_normal(60)
        on_line = [(b, (0.01 + 0.001 * b) * e) for b, e in zip(sizes, noise, strict=True)]
        teeth = [(b, (0.01 + 0.001 * b) * (1.0 if b % 2 else 1.3)) for b in sizes]
        state = fold(straight, [*on_line, (70, 0.08 * 1.04)])
        assert abs(seconds_at(straight, state, 70) / 0.08 - 1) < 0.03
        state = fold(toothed, teeth, num_steps=[2])
        even, odd = (int(sizes[sizes % 2 == r][-1]) for r in (0, 1))
        assert seconds_at(toothed, state, even) == pytest.approx(
            1.3 * (0.01 + 0.001 * even), rel=0.03
        )
        assert seconds_at(toothed, state, odd) == pytest.approx(0.01 + 0.001 * odd, rel=0.03)

    def test_a_slow_visit_is_a_tooth_only_where_returns_have_shown_teeth(self):
        smooth, toothed = VisitedPoints(), VisitedPoints()
        rng = np.random.default_rng(0)
        visits = [(b, (0.01 + 0.001 * b) * rng.normal(1, 0.02)) for b in [20, 24, 30, 34, 38] * 5]
        teeth = [(b, t * (1.25 if b % 4 else 1.0)) for b, t in visits]
        for model, rounds, expected in (
            (smooth, visits, 0.041),
            (toothed, teeth, 1.2 * 0.041),
        ):
            state = fold(model, [*rounds, (31, 1.2 * 0.041), rounds[2]])
            assert seconds_at(model, state, 31) == pytest.approx(expected, rel=0.06)


class TestLoadWarning:
    def test_load_that_has_told_slowdowns_warns_of_the_next(self):
        """A neighbour that takes half of the host doubles the step, as its load said before."""
        model = VisitedPoints()
        state = self._with_neighbours(model, seconds=0.060)
        state = fold(model, [(32, 0.030)], state, cpu_load=[0.55])
        assert seconds_at(model, state, 32) == pytest.approx(0.060, rel=0.1)
        # A false alarm is over with the next step.
        state = fold(model, [(32, 0.030)], state, cpu_load=[0.55])
        assert seconds_at(model, state, 32) == pytest.approx(0.030, rel=0.02)

    def test_load_that_tells_nothing_changes_nothing(self):
        model = VisitedPoints()
        state = self._with_neighbours(model, seconds=0.030)
        state = fold(model, [(32, 0.030)], state, cpu_load=[0.55])
        assert seconds_at(model, state, 32) == pytest.approx(0.030, rel=0.01)

    def test_no_rank_is_expected_to_be_slower_than_it_has_been(self):
        """A host that is full is not as slow as 1 / (1 - load) says."""
        model = VisitedPoints()
        state = self._with_neighbours(model, seconds=0.060)
        state = fold(model, [(32, 0.030)], state, cpu_load=[1.0])
        assert seconds_at(model, state, 32) == pytest.approx(0.060, rel=0.1)

    def test_load_that_rises_with_a_far_time_is_believed_at_once(self):
        """Where loads have told nothing yet, and at a batch size that was never seen."""
        model = VisitedPoints()
        known = fold(model, [(32, 0.030)] * 5, cpu_load=[0.05])
        for load, is_slower in ((0.6, True), (0.05, False)):
            told = fold(model, [(32, 0.030)], known, cpu_load=[load])
            told = fold(model, [(40, 0.060)], told, cpu_load=[load])
            assert (seconds_at(model, told, 32) > 0.040) == is_slower

    @staticmethod
    def _with_neighbours(model, seconds):
        state = None
        for _ in range(3):
            for pace, load in ((0.030, 0.05), (seconds, 0.55)):
                state = fold(model, [(32, pace)] * 9, state, cpu_load=[load])
                # The reading at the end of a round is that of the next one.
                state = fold(model, [(32, pace)], state, cpu_load=[0.6 - load])
        return state


class TestNarx:
    """One-step prediction on hosts whose load announces what the next round will be like."""

    def contention(self, num_rounds, num_ranks, chance, seed=0):
        """Speeds by round, and the load at the end of each round (in force in the next)."""
        rng = np.random.default_rng(seed)
        load, on = np.full(num_ranks, 0.03), np.zeros(num_ranks, dtype=bool)
        speeds, loads = [], []
        for _ in range(num_rounds):
            noise = 1 + 0.03 * rng.standard_normal(num_ranks)
            speeds.append(1000 * (1 - 0.9 * load) * noise)
            flips = rng.random(num_ranks) < chance
            level = rng.uniform(0.2, 0.7, num_ranks)
            on = on ^ flips
            load = np.where(flips, np.where(on, level, 0.03), load)
            loads.append((load + 0.02 * rng.standard_normal(num_ranks)).clip(0, 1))
        return np.array(speeds), np.array(loads)

    def error(self, speeds, loads, predict):
        return np.mean([np.abs(predict(k) / speeds[k] - 1) for k in range(30, len(speeds))])

    def predictions(self, speeds, loads):
        model = Narx()
        state = model.init(speeds.shape[1])
        predicted = [np.full(speeds.shape[1], np.nan)]
        for speed, load in zip(speeds, loads, strict=True):
            state = model.update(
                state, Measurement.of(np.full(len(speed), 64.0), 64.0 / speed, cpu_load=load)
            )
            predicted.append(model.predict(state))
        return predicted

    def test_better_than_last_value_ewma_and_autoregression(self):
        speeds, loads = self.contention(200, 12, chance=0.1)
        predicted = self.predictions(speeds, loads)
        narx = self.error(speeds, loads, lambda k: predicted[k])
        last = self.error(speeds, loads, lambda k: speeds[k - 1])
        averages = [speeds[0]]
        for speed in speeds:
            averages.append(averages[-1] + 0.3 * (speed - averages[-1]))
        average = self.error(speeds, loads, lambda k: averages[k])

        def autoregression(k):
            past = speeds[max(0, k - 64) : k]
            answer = []
            for column in past.T:
                known = np.column_stack([column[1:-1], column[:-2], np.ones(len(column) - 2)])
                weights = np.linalg.lstsq(known, column[2:], rcond=None)[0]
                answer.append(weights @ [column[-1], column[-2], 1.0])
            return np.array(answer)

        assert narx < 0.7 * min(last, average, self.error(speeds, loads, autoregression))

    def test_stays_within_what_was_seen(self):
        speeds, loads = self.contention(80, 4, chance=0.1)
        for k, predicted in enumerate(self.predictions(speeds, loads)[30:], start=30):
            seen = speeds[max(0, k - 64) : k]
            assert np.all(predicted >= seen.min(axis=0) - 1e-9)
            assert np.all(predicted <= seen.max(axis=0) + 1e-9)

    def test_an_average_answers_until_enough_is_seen_and_without_loads(self):
        model = Narx()
        state = fold(model, [(10, 1.0), (10, 0.5)])
        assert model.predict(state) == pytest.approx(10 + 0.3 * 10)
        state = fold(model, [(10, 1.0 + 0.1 * (k % 2)) for k in range(60)])
        assert model.predict(state) == pytest.approx(state["average"])
