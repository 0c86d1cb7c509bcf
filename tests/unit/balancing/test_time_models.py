"""What each time model is for."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Measurement
from hvd_dbs.balancing.time_models.ewma import Ewma
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.balancing.time_models.line_fit import add_point, line, no_sums
from hvd_dbs.balancing.time_models.narx import Narx
from hvd_dbs.balancing.time_models.narx_or_last import NarxOrLast
from hvd_dbs.balancing.time_models.overlap_affine import OverlapAffine
from hvd_dbs.balancing.time_models.posterior import Posterior
from hvd_dbs.balancing.time_models.windowed_mean import WindowedMean
from tests.unit.balancing.rounds import fold, seconds_at


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
        [lambda: WindowedMean(0), lambda: Ewma(0), lambda: Narx(3), lambda: NarxOrLast(0)],
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


class TestNarxOrLast:
    """Each rank is foretold by whichever has done better at the horizon of its plan."""

    def foretold(self, model, speeds, loads):
        """Speeds, shape `[rounds, ranks]`, that the model foretells after each round."""
        state, found = model.init(speeds.shape[1]), []
        for speed, load in zip(speeds, loads, strict=True):
            batch_sizes = np.full(len(speed), 64.0)
            seen = Measurement.of(batch_sizes, batch_sizes / speed, cpu_load=load)
            state = model.update(state, seen)
            found.append(1.0 / model.record(state)[:, 0])
        return np.array(found)

    def cycle(self, num_rounds):
        """A speed of period 3 that the load announces, and noise."""
        noise = 1 + 0.005 * np.random.default_rng(3).standard_normal(num_rounds)
        slow = np.arange(num_rounds) % 3 == 0
        return (np.where(slow, 500.0, 1000.0) * noise)[:, None], np.roll(slow, -1)[:, None] * 0.5

    def test_errors_count_at_the_horizon(self):
        """One round ahead the network knows, three rounds ahead the last speed comes again."""
        speeds, loads = self.cycle(150)
        for horizon in (1, 3):
            foretold = self.foretold(NarxOrLast(horizon), speeds, loads)
            errors = foretold[100:-horizon] / speeds[100 + horizon :] - 1
            assert np.abs(errors).max() < 0.05

    def test_each_rank_by_its_own_errors(self):
        """Beside a rank whose load announces its speed, one whose load says nothing."""
        speeds, loads = self.cycle(300)
        random = np.random.default_rng(4)
        steps = np.where(random.random(300) < 0.03, random.uniform(-0.7, 0.7, 300), 0.0)
        wanders = 1000 * np.exp(np.clip(np.cumsum(steps), -1, 1))
        speeds = np.column_stack([speeds, wanders])
        loads = np.column_stack([loads, random.random(300)])
        both = self.foretold(NarxOrLast(1), speeds, loads)
        narx = self.foretold(Narx(), speeds, loads)
        np.testing.assert_array_equal(both[60:, 0], narx[60:, 0])
        is_last = both[60:, 1] == speeds[60:, 1]
        assert is_last.mean() > 0.8  # The network may be lucky at a jump, for a while.

    def test_a_round_without_a_timing_is_not_an_error_of_anybody(self):
        speeds, loads = self.cycle(150)
        speeds[100:110] = np.nan
        foretold = self.foretold(NarxOrLast(1), speeds, loads)
        np.testing.assert_array_equal(foretold[100:], self.foretold(Narx(), speeds, loads)[100:])


class TestPosterior:
    @pytest.mark.parametrize("noise", [0.05, 0.15])
    def test_what_noise_leaves_unsure_is_said_to_be(self, noise):
        """Also where it is five times that of the prior, and known by eight rounds alone."""
        random, model, batch_sizes = np.random.default_rng(5101), Posterior(), np.full(400, 32.0)
        state = model.init(400)
        for _ in range(8):
            seconds = np.exp(random.normal(0, noise, 400))
            state = model.update(state, Measurement.of(batch_sizes, seconds))
        curves = model.curves(model.record(state))
        sigmas = np.log(curves.seconds(batch_sizes)) / curves.deviations(batch_sizes)
        assert 0.6 < np.sqrt(np.mean(sigmas**2)) < 1.6
