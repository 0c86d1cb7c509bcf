"""The memory of batch sizes, the usual pace beside it, and what the host's load tells."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Measurement
from hvd_dbs.balancing.time_models.visited_points import VisitedPoints
from tests.unit.balancing.rounds import fold, seconds_at


def usual_at(model, state, batch_size):
    """Log of the seconds of ranks that nothing disturbs."""
    usual = model.curves(model.record(state)).usual_log_seconds(np.array([float(batch_size)]))
    return usual if len(usual) > 1 else float(usual[0])


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
