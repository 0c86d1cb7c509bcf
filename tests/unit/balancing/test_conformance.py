"""What every registered model and preset has to fulfil; joined by its registry line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_dbs.balancing import Bounds, Controller, Measurement, Plan, Strategy, strategies
from hvd_dbs.balancing.time_models import TIME_MODELS

STRATEGIES = {**strategies.PRESETS, "static": lambda: strategies.static([3, 2, 1, 1])}
MEASURING = [name for name, make in STRATEGIES.items() if make().model is not None]

ANY_NUMBER = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")]),
    st.floats(1e-3, 1.0),
)


def rows(values):
    return st.lists(values, min_size=3, max_size=3)


@pytest.mark.parametrize("name", TIME_MODELS)
class TestModel:
    def measured(self, batch_sizes, noise=0.0, scale=1.0, num_rounds=12):
        """Rounds on fixed lines, batch sizes moving about."""
        for k in range(num_rounds):
            b = np.asarray(batch_sizes, dtype=float) + 2 * (k % 3)
            wave = 1 + noise * np.sin(k + np.arange(len(b)))
            t = scale * (0.01 + 0.001 * np.arange(1, 1 + len(b)) * b) * wave
            yield Measurement.of(
                b,
                t,
                cpu_load=np.full(len(b), 0.1),
                num_steps=np.full(len(b), 5.0),
                first_bucket_seconds=0.4 * t,
                overlap_seconds=np.full(len(b), scale * 0.005),
            )

    def fold(self, name, measurements, num_rows):
        model = TIME_MODELS[name]()
        state = model.init(num_rows)
        for measurement in measurements:
            state = model.update(state, measurement)
        return model, state

    def test_nothing_seen_nothing_known(self, name):
        model = TIME_MODELS[name]()
        record = model.record(model.init(4))
        assert record.shape == (4, model.record_size)
        assert not model.curves(record).known.any()

    def test_predicts_what_it_sees(self, name):
        model, state = self.fold(name, self.measured([20, 30, 40], noise=0.01), 3)
        curves = model.curves(model.record(state))
        assert curves.known.all()
        b = np.array([24.0, 34.0, 44.0])  # Of the last round.
        wanted = 0.01 + 0.001 * np.arange(1, 4) * b
        np.testing.assert_allclose(curves.seconds(b), wanted, rtol=0.08)

    def test_rows_do_not_know_each_other(self, name):
        together = list(self.measured([20, 30, 40], noise=0.05))
        model, state = self.fold(name, together, 3)
        for row in range(3):
            alone = [
                Measurement(**{k: v[row : row + 1] for k, v in vars(m).items()}) for m in together
            ]
            one, lonely = self.fold(name, alone, 1)
            np.testing.assert_allclose(one.record(lonely)[0], model.record(state)[row], rtol=1e-9)

    def test_update_leaves_the_given_state_alone(self, name):
        measurements = list(self.measured([20, 30, 40], num_rounds=20))
        model, state = self.fold(name, measurements, 3)
        before = {key: value.copy() for key, value in state.items()}
        model.update(state, measurements[0])
        for key, value in state.items():
            np.testing.assert_array_equal(value, before[key])

    def test_scaling_all_times_scales_the_curves(self, name):
        b = np.array([24.0, 34.0, 44.0])
        model, state = self.fold(name, self.measured([20, 30, 40], 0.02, num_rounds=30), 3)
        _, scaled = self.fold(name, self.measured([20, 30, 40], 0.02, 4.0, num_rounds=30), 3)
        one, other = (model.curves(model.record(s)).seconds(b) for s in (state, scaled))
        np.testing.assert_allclose(other, 4.0 * one, rtol=1e-6)

    @settings(max_examples=60)
    @given(data=st.data())
    def test_absurd_measurements_do_no_harm(self, name, data):
        model, state = self.fold(name, self.measured([20, 30, 40], num_rounds=18), 3)
        known = model.curves(model.record(state)).seconds(np.array([24.0, 34.0, 44.0]))
        with np.errstate(all="ignore"):
            bad = np.array(data.draw(rows(st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 0.0]))))
            state = model.update(
                state,
                Measurement.of(
                    [24, 34, 44],
                    bad,
                    cpu_load=data.draw(rows(ANY_NUMBER)),
                    memory_load=data.draw(rows(ANY_NUMBER)),
                    num_steps=data.draw(rows(ANY_NUMBER)),
                    first_bucket_seconds=data.draw(rows(ANY_NUMBER)),
                    overlap_seconds=data.draw(rows(ANY_NUMBER)),
                ),
            )
            curves = model.curves(model.record(state))
            after = curves.seconds(np.array([24.0, 34.0, 44.0]))
        if name != "last_round":  # Which knows nothing but the last round.
            assert curves.known.all()
            np.testing.assert_allclose(after, known, rtol=0.3)


def cluster_round(plan, k, noise=0.02):
    """Four ranks with affine times and a deterministic wobble."""
    b = np.array(plan.batch_sizes, dtype=float)
    t = 0.005 + 0.001 * np.array([1.0, 1.0, 2.0, 4.0]) * b
    t = t * (1 + noise * np.sin(7.0 * k + 3.0 * np.arange(4)))
    return Measurement.of(
        b, t, cpu_load=np.full(4, 0.1), num_steps=np.full(4, 5.0), memory_load=np.full(4, 0.4)
    )


@pytest.mark.parametrize("name", STRATEGIES)
class TestPreset:
    def controller(self, name, **bounds) -> Controller:
        return Controller(STRATEGIES[name](), 128, Bounds.of(4, **{"minimum": 1, **bounds}), 4)

    def run(self, controller, rounds):
        plans = []
        for k in rounds:
            records = controller.observe(cluster_round(controller.plan, k))
            plans.append(controller.decide(records).plan)
        return plans

    def test_names_itself(self, name):
        assert STRATEGIES[name]().name == name

    def test_keeps_sum_and_bounds(self, name):
        controller = self.controller(name, minimum=8, maximum=[64, 40, None, 64], multiple_of=4)
        for plan in self.run(controller, range(30)):
            assert plan.global_batch_size == 128
            assert all(b >= 8 and b % 4 == 0 for b in plan.batch_sizes)
            assert plan.batch_sizes[1] <= 40

    def test_beats_even_on_unequal_machines(self, name):
        controller = self.controller(name)
        best = self.run(controller, range(40))[-1]
        seconds = cluster_round(best, 0, noise=0.0).busy_seconds.max()
        even = cluster_round(Plan((32,) * 4), 0, noise=0.0).busy_seconds.max()
        assert seconds <= even if name in ("even", "observe", "static") else seconds < 0.6 * even

    def test_state_survives_json(self, name):
        controller = self.controller(name)
        self.run(controller, range(25))
        other = self.controller(name)
        other.load_state_dict(json.loads(json.dumps(controller.state_dict(), allow_nan=False)))
        assert other.plan == controller.plan and other.steps_to_next == controller.steps_to_next
        assert self.run(other, range(25, 40)) == self.run(controller, range(25, 40))

    @settings(max_examples=40)
    @given(data=st.data())
    def test_absurd_rounds_never_break_it(self, name, data):
        controller = self.controller(name, minimum=2, maximum=90)
        self.run(controller, range(data.draw(st.integers(0, 20))))
        four = st.lists(ANY_NUMBER, min_size=4, max_size=4)
        for _ in range(3):
            measurement = Measurement.of(
                controller.plan.batch_sizes,
                data.draw(four),
                cpu_load=data.draw(four),
                memory_load=data.draw(four),
                num_steps=data.draw(four),
                first_bucket_seconds=data.draw(four),
                overlap_seconds=data.draw(four),
            )
            decision = controller.decide(controller.observe(measurement))
            assert decision.plan.global_batch_size == 128
            assert all(2 <= b <= 90 for b in decision.plan.batch_sizes)
            assert decision.reason
            json.dumps(controller.state_dict(), allow_nan=False)
        assert self.run(controller, range(60, 64))[-1].global_batch_size == 128

    @pytest.mark.parametrize(
        "num_rounds, rank, seconds, num_steps", [(1, 0, 1e-310, 2.0), (8, 2, 0.0546875, np.inf)]
    )
    def test_a_round_that_no_machine_has_leaves_a_state_that_can_be_saved(
        self, name, num_rounds, rank, seconds, num_steps
    ):
        controller = self.controller(name, minimum=2, maximum=90)
        self.run(controller, range(num_rounds))
        here = np.arange(4) == rank
        measurement = Measurement.of(
            controller.plan.batch_sizes, seconds * here, num_steps=np.where(here, num_steps, 0.0)
        )
        controller.decide(controller.observe(measurement))
        json.dumps(controller.state_dict(), allow_nan=False)

    @settings(max_examples=20)
    @given(data=st.data())
    def test_absurd_records_never_break_it(self, name, data):
        controller = self.controller(name)
        width = getattr(controller.strategy.model, "record_size", 0)
        records = [data.draw(st.lists(ANY_NUMBER, min_size=width, max_size=width)) for _ in "1234"]
        plan = controller.decide(np.array(records).reshape(4, width)).plan
        assert plan.global_batch_size == 128 and min(plan.batch_sizes) >= 1
        json.dumps(controller.state_dict(), allow_nan=False)

    def test_every_cadence_is_possible(self, name):
        if STRATEGIES[name]().model is None:
            return
        for every in ("epoch", "automatic", 3):
            controller = Controller(
                strategies.resolve(STRATEGIES[name](), every), 128, Bounds.of(4), 4
            )
            self.run(controller, range(3))
            due = controller.steps_to_next
            assert due == 3 if every == 3 else (due is None) == (every == "epoch")


def test_presets_without_a_model_never_change():
    for name in STRATEGIES:
        if name not in MEASURING:
            controller = TestPreset().controller(name)
            assert len(set(TestPreset().run(controller, range(5)))) == 1


def test_a_strategy_needs_model_and_solver():
    with pytest.raises(ValueError, match="needs both"):
        Strategy("half", model=TIME_MODELS["ewma"](), every="epoch")
