"""How well time models foresee the step in which a plan holds, under processor contention."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Measurement, Plan
from hvd_dbs.balancing.time_models.ewma import Ewma
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.balancing.time_models.narx import Narx
from hvd_dbs.balancing.time_models.time_model import TimeModel
from hvd_dbs.simulator.autoregression import Autoregression
from hvd_dbs.simulator.cluster import Cluster
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.disturbances import FalseAlarms
from hvd_dbs.simulator.rank_groups import AffineRanks
from hvd_dbs.simulator.scenario import Noise, Scenario
from hvd_dbs.simulator.slowdowns import RandomNeighbours

LEARNING_STEPS = 100
"""Steps at the start that do not count: the models learn."""


class Predictor(Protocol):
    """Foresees the seconds of the steps to come at the batch size given."""

    def foresee(self, measurement: Measurement) -> NDArray[np.float64]:
        """Takes in a step, returns the seconds of those to come, shape `[ranks]`."""
        ...


class ModelPredictor:
    """A time model of the package, asked as rank 0 asks it."""

    def __init__(self, model: TimeModel, num_ranks: int) -> None:
        self._model, self._state = model, model.init(num_ranks)

    def foresee(self, measurement: Measurement) -> NDArray[np.float64]:
        """Takes in a step, returns the seconds of those to come, shape `[ranks]`."""
        with np.errstate(all="ignore"):
            self._state = self._model.update(self._state, measurement)
            curves = self._model.curves(self._model.record(self._state))
            return curves.seconds(measurement.batch_sizes)


class AutoregressionPredictor:
    """The plain autoregression of order 2."""

    def __init__(self, num_ranks: int) -> None:
        self._model = Autoregression(num_ranks)

    def foresee(self, measurement: Measurement) -> NDArray[np.float64]:
        """Takes in a step, returns the seconds of those to come, shape `[ranks]`."""
        self._model.observe(measurement.batch_sizes / measurement.busy_seconds)
        speeds = np.maximum(self._model.predict(), 1e-9)
        return np.asarray(measurement.batch_sizes / speeds, dtype=np.float64)


@dataclass(frozen=True)
class PredictionError:
    """Error of a predictor's speeds, in parts of the rank's undisturbed speed.

    Attributes:
        scenario: Name of the case.
        predictor: Name of the predictor.
        root_mean_square: Over all steps and ranks that count.
        mean_absolute: Likewise.
        at_changes: Root mean square where a slowdown has begun or ended since it was foreseen;
            None where none has.
    """

    scenario: str
    predictor: str
    root_mean_square: float
    mean_absolute: float
    at_changes: float | None


def predictors(num_ranks: int) -> Mapping[str, Predictor]:
    """Last value, EWMA, plain autoregression and NARX, anew."""
    return {
        "last value": ModelPredictor(LastRound(), num_ranks),
        "EWMA": ModelPredictor(Ewma(), num_ranks),
        "autoregression": AutoregressionPredictor(num_ranks),
        "NARX": ModelPredictor(Narx(), num_ranks),
    }


def prediction_errors(scenario: Scenario) -> Sequence[PredictionError]:
    """Plays a scenario with the even split, step by step, and lets all predictors foresee it.

    A plan that is decided after a step holds `steps_ahead` steps after the next one: it is as good
    as what was foreseen of that step.
    """
    conditions = Conditions.of(scenario)
    cluster, found = Cluster(conditions), predictors(scenario.size)
    shares = [1.0] * scenario.size
    plan = Plan.proportional(scenario.global_batch_size, shares, scenario.bounds)
    batch_sizes = np.asarray(plan.batch_sizes)
    undisturbed = conditions.curves.seconds(batch_sizes)
    timeline = conditions.timeline()
    ahead = 1 + scenario.steps_ahead
    # Of the last steps: what was foreseen after each, and what the state of the ranks was.
    foreseen: deque[dict[str, NDArray[np.float64]]] = deque(maxlen=ahead)
    factors: deque[NDArray[np.float64]] = deque(maxlen=ahead)
    errors: dict[str, list[NDArray[np.float64]]] = {name: [] for name in found}
    changed: list[NDArray[np.bool_]] = []
    for step in range(scenario.steps):
        measurement = cluster.measure([cluster.play(batch_sizes, step + 1)])
        segment = timeline.segment(step)
        if step >= LEARNING_STEPS:
            changed.append(~np.isclose(segment.factor, factors[0]))
            for name, seconds in foreseen[0].items():
                errors[name].append(undisturbed / seconds - undisturbed / measurement.busy_seconds)
        factors.append(segment.factor)
        foreseen.append({name: model.foresee(measurement) for name, model in found.items()})
    where = np.stack(changed)
    return [_summary(scenario.name, name, np.stack(errors[name]), where) for name in found]


def _summary(
    scenario: str, name: str, error: NDArray[np.float64], changed: NDArray[np.bool_]
) -> PredictionError:
    at_changes = error[changed]
    return PredictionError(
        scenario,
        name,
        float(np.sqrt(np.mean(error**2))),
        float(np.mean(np.abs(error))),
        float(np.sqrt(np.mean(at_changes**2))) if at_changes.size else None,
    )


def _contention(name: str, **neighbours: float) -> Scenario:
    return Scenario(
        name=name,
        global_batch_size=32 * 64,
        ranks=(
            AffineRanks(
                count=64, fixed_ms=2, per_sample_ms=neighbours.get("per_sample_ms", 3), spread=0.15
            ),
        ),
        steps=600,
        noise=Noise(jitter=0.05),
        disturbances=(
            RandomNeighbours(
                mean_quiet_steps=neighbours.get("quiet", 60),
                mean_busy_steps=neighbours.get("busy", 25),
                least_slowdown=neighbours.get("least", 1.3),
                most_slowdown=neighbours.get("most", 2.5),
                lead_steps=int(neighbours.get("lead", 0)),
                load_noise=neighbours.get("load_noise", 0.05),
            ),
            FalseAlarms(chance=neighbours.get("alarms", 0.003), mean_steps=8),
        ),
        seed=1,
    )


PREDICTION_CASES: Mapping[str, Callable[[], Scenario]] = MappingProxyType(
    {
        "announced": lambda: _contention("neighbours come and go"),
        "strong": lambda: _contention("strong neighbours", least=2, most=4),
        "short": lambda: _contention("short visits", quiet=20, busy=6),
        "long": lambda: _contention("long visits", quiet=150, busy=100),
        "alarms": lambda: _contention("many false alarms", alarms=0.02),
        "loose": lambda: _contention("load says little", load_noise=0.3),
        "long_steps": lambda: _contention("steps of half a second", per_sample_ms=16),
        "early": lambda: _contention("load a second early", lead=10),
        "jitter": lambda: replace(
            _contention("no neighbours", quiet=1e9), disturbances=(FalseAlarms(),)
        ),
    }
)
"""Contention cases by name."""
