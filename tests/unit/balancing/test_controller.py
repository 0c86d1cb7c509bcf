"""The controller, and strategies by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Controller, Measurement, Plan, Strategy, strategies
from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.plan import FIRST_ROUND_STEPS
from hvd_dbs.balancing.solvers.dead_band import DeadBand
from hvd_dbs.balancing.solvers.decision_interval import DecisionInterval
from hvd_dbs.balancing.solvers.equal_finish import EqualFinish
from hvd_dbs.balancing.solvers.pair_shift import PairShift
from hvd_dbs.balancing.solvers.proportional import Proportional
from hvd_dbs.balancing.solvers.solver import Proposal
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.balancing.time_models.windowed_mean import WindowedMean


def controller_of(strategy=None, total=96, size=2):
    return Controller(strategy or strategies.dbs(), total, Bounds.of(size, 1), size)


def observe(controller, seconds):
    return controller.observe(Measurement.of(controller.plan.batch_sizes, seconds))


class Faulty(LastRound):
    def update(self, state, measurement):
        raise OSError("sensor gone")


class Rude(Proportional):
    """Proposes whatever it was made with."""

    def __init__(self, plan):
        self.plan = plan

    def solve(self, state, problem, curves):
        return Proposal(self.plan), state


def test_dbs_twice_the_speed_twice_the_samples():
    controller = controller_of()
    decision = controller.decide(observe(controller, [0.1, 0.2]))
    assert decision.changed and decision.plan.batch_sizes == (64, 32) == controller.plan.batch_sizes
    assert "rank 1 was slowest" in decision.reason
    np.testing.assert_allclose(decision.predicted_seconds, (0.2, 0.4 / 3))


def test_kept_plans_say_why():
    controller = controller_of()
    assert "no usable timing of rank 1" in controller.decide(observe(controller, [0.1, -1])).reason
    absurd = controller.decide(observe(controller, [1e-6, 1e5]))
    assert absurd.warning and "not believed" in absurd.reason
    assert controller.decide(observe(controller, [0.1, 0.1])).reason.startswith("kept: step")


def test_a_failing_model_is_reported_once_and_keeps_the_plan(caplog):
    strategy = strategies.Strategy("faulty", model=Faulty(), solver=Proportional(), every="epoch")
    controller = controller_of(strategy)
    for _ in range(3):
        decision = controller.decide(observe(controller, [0.1, 0.2]))
        assert not decision.changed and decision.warning
    assert len(caplog.records) == 1 and "sensor gone" in caplog.text


def test_a_model_that_cannot_pool_goes_on_alone(caplog):
    class Alone(LastRound):
        def pool(self, state, records):
            raise KeyError("no such rank")

    strategy = strategies.Strategy("alone", model=Alone(), solver=Proportional(), every="epoch")
    controller, other = controller_of(strategy), controller_of(strategy)
    records = observe(controller, [0.1, 0.2])
    for _ in range(2):
        other.pool(records)
    assert controller.decide(records).plan.batch_sizes == (64, 32)
    assert len(caplog.records) == 2 and "no such rank" in caplog.text


@pytest.mark.parametrize("plan", [Plan((90, 7)), Plan((96, 0)), Plan((32, 32, 32))])
def test_a_broken_invariant_is_no_plan(plan):
    strategy = strategies.Strategy("rude", model=LastRound(), solver=Rude(plan), every="epoch")
    controller = controller_of(strategy)
    with pytest.raises(RuntimeError, match="defect of the solver"):
        controller.decide(observe(controller, [0.1, 0.2]))


def test_a_plan_outside_of_the_bounds_is_not_adopted_nor_loaded():
    free, bounded = (Controller(strategies.dbs(), 96, Bounds.of(2, 1, most)) for most in (96, 60))
    free.adopt(Plan((64, 32)))
    with pytest.raises(ValueError, match=r"not within the bounds .*60"):
        bounded.adopt(Plan((64, 32)))
    with pytest.raises(ValueError, match=r"not within the bounds .*60"):
        bounded.load_state_dict(free.state_dict())
    assert bounded.plan == Plan((48, 48))


def test_adopt_checks_size_and_sum():
    controller = controller_of()
    controller.adopt(Plan((90, 6)))
    assert controller.plan.batch_sizes == (90, 6)
    for plan in (Plan((90, 7)), Plan((90, 3, 3))):
        with pytest.raises(ValueError, match="expected 2 ranks and 96 samples"):
            controller.adopt(plan)


def test_load_changes_nothing_unless_all_fits():
    controller = controller_of()
    controller.decide(observe(controller, [0.1, 0.2]))
    state = controller.state_dict()
    other = controller_of()
    for wrong, says in (
        ({**state, "strategy": "even"}, "'even'"),
        ({**state, "model": {"per_sample": [0.1]}}, "shapes"),
        ({**state, "batch_sizes": [64, 33]}, "97"),
    ):
        with pytest.raises(ValueError, match=says):
            other.load_state_dict(wrong)
        assert other.plan.batch_sizes == (48, 48)
    other.load_state_dict(state)
    assert other.plan.batch_sizes == (64, 32)


def test_load_wants_what_the_solver_keeps_inside_its_guards_too():
    strategy = Strategy("own", None, WindowedMean(), DecisionInterval(PairShift()), "automatic")
    state = controller_of(strategy).state_dict()
    inside = {name: value for name, value in state["solver"]["solver"].items() if name != "waited"}
    old = {**state, "solver": {**state["solver"], "solver": inside}}
    with pytest.raises(ValueError, match=r"solver\.waited"):
        controller_of(strategy).load_state_dict(old)


@pytest.mark.parametrize(
    ("every", "due"), [("epoch", None), (7, 7), ("automatic", FIRST_ROUND_STEPS), (None, None)]
)
def test_steps_to_the_next_decision(every, due):
    controller = controller_of(strategies.resolve("dbs", every))
    assert controller.steps_to_next == due
    assert controller.decide(observe(controller, [0.1, 0.2])).steps_to_next == due
    controller.adopt(Plan((48, 48)), steps_to_next=11)
    assert controller.steps_to_next == (11 if every == "automatic" else due)


class TestStrategies:
    def test_static_starts_as_told(self):
        strategy = strategies.static([2, 1, 1])
        assert Controller(strategy, 64, Bounds.of(3), 3).plan.batch_sizes == (32, 16, 16)
        with pytest.raises(ValueError, match="3 ratios"):
            Controller(strategy, 64, Bounds.of(4), 4)

    @pytest.mark.parametrize(
        "ratios", [[], [1, 0], [1, float("inf")], [1, float("nan")], 2, [2, "a"], np.zeros(2)]
    )
    def test_static_wants_positive_ratios(self, ratios):
        with pytest.raises(ValueError, match="positive"):
            strategies.static(ratios)

    def test_numbers_may_be_of_numpy(self):
        assert strategies.static(np.array([2.0, 1.0])) == strategies.static([2, 1])
        assert strategies.resolve("dbs", np.int64(5)) == strategies.resolve("dbs", 5)
        assert "5" in str(strategies.resolve("dbs", np.int64(5)).identity)
        with pytest.raises(ValueError, match="a number of steps from 1 on"):
            strategies.resolve("dbs", np.int64(0))

    def test_unknown_names_list_the_known_ones(self):
        with pytest.raises(ValueError, match=r"adaptive, cannikin, dbs, even.*static"):
            strategies.resolve("fast")
        with pytest.raises(ValueError, match="needs ratios"):
            strategies.resolve("static")
        with pytest.raises(TypeError, match="preset's name"):
            strategies.resolve(7)

    @pytest.mark.parametrize("every", ["step", "continuous", 0, -3, 1.5, True])
    def test_impossible_cadence(self, every):
        with pytest.raises(ValueError, match="every="):
            strategies.resolve("dbs", every)

    def test_identity_tells_strategies_apart(self):
        identities = {make().identity for make in strategies.PRESETS.values()}
        assert len(identities) == len(strategies.PRESETS)
        for make in strategies.PRESETS.values():
            assert make().identity == make().identity
        assert strategies.dbs().identity == strategies.resolve("dbs").identity

    @pytest.mark.parametrize(
        ("model", "solver"),
        [
            (WindowedMean(4), DeadBand(EqualFinish(), band=0.05)),
            (WindowedMean(8), DeadBand(EqualFinish(), band=0.1)),
            (WindowedMean(8), DeadBand(DeadBand(EqualFinish()), band=0.05)),
            (WindowedMean(8), DeadBand(PairShift(window=2), band=0.05)),
        ],
    )
    def test_identity_tells_settings_apart(self, model, solver):
        usual = Strategy("own", None, WindowedMean(8), DeadBand(EqualFinish(), band=0.05), 5)
        own = Strategy("own", None, model, solver, 5)
        assert own.identity != usual.identity

    def test_parts_that_do_not_show_their_settings_are_refused(self):
        class Own:
            init, solve = EqualFinish.init, EqualFinish.solve

        with pytest.raises(ValueError, match=r"Own object at 0x.*Make its class a frozen"):
            Strategy("own", None, WindowedMean(), DeadBand(Own()), 5)
        strategy = Strategy("own", None, WindowedMean(), dataclass(frozen=True)(Own)(), 5)
        assert "Own()" in strategy.identity[-1]


def test_affine_curves_doubt_what_is_not_a_time():
    curves = AffineCurves(np.array([0.0, -1.0, 0.0, np.nan]), np.array([1.0, 1.0, 0.0, 1.0]))
    assert curves.known.tolist() == [True, False, False, False]


def test_what_time_curves_know_of_a_step_is_not_communication_twice():
    """Cannikin's know of communication that sticks out, the others do not."""
    for strategy in (strategies.dbs(), strategies.cannikin(), strategies.adaptive()):
        controller = Controller(strategy, 96, Bounds.of(2, minimum=1), num_rows=2)
        measured = Measurement.of(
            [48, 48],
            [0.1, 0.2],
            first_bucket_seconds=[0.05, 0.1],
            overlap_seconds=[0.3, 0.3],
            last_bucket_seconds=[0.05, 0.05],
        )
        records = controller.observe(measured)
        controller.note_step(0.45, np.array([48.0, 48.0]))
        assert controller.decide(records).predicted_seconds[0] == pytest.approx(0.45)
        records = controller.observe(measured)
        controller.note_step(float("nan"), np.array([48.0, 48.0]))
        assert np.isfinite(controller.decide(records).predicted_seconds[0])


def test_predicted_steps_include_the_communication_that_was_measured():
    """A decision is the same; what it predicts can be compared with whole steps."""
    plain, slow = controller_of(), controller_of()
    for seconds in (0.3, float("nan"), 0.5, -0.1, 0.5, 0.5):
        slow.note_communication(seconds)
    expected = plain.decide(observe(plain, [0.1, 0.2]))
    decision = slow.decide(observe(slow, [0.1, 0.2]))
    assert decision.plan == expected.plan
    assert np.subtract(decision.predicted_seconds, expected.predicted_seconds) == pytest.approx(0.5)
    assert decision.reason == "step 700.0 ms -> 633.3 ms predicted; rank 1 was slowest"
