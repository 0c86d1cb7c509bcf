"""How well time models foresee the next step where the hosts' load announces slowdowns."""

from __future__ import annotations

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
    """Foresees the seconds of the next step at the batch size given."""

    def next_seconds(self, measurement: Measurement) -> NDArray[np.float64]:
        """Takes in a step, returns the seconds of the next one, shape `[ranks]`."""
        ...


class ModelPredictor:
    """A time model of the package, asked as rank 0 asks it."""

    def __init__(self, model: TimeModel, num_ranks: int) -> None:
        self._model, self._state = model, model.init(num_ranks)

    def next_seconds(self, measurement: Measurement) -> NDArray[np.float64]:
        """Takes in a step, returns the seconds of the next one, shape `[ranks]`."""
        with np.errstate(all="ignore"):
            self._state = self._model.update(self._state, measurement)
            curves = self._model.curves(self._model.record(self._state))
            return curves.seconds(measurement.batch_sizes)


class AutoregressionPredictor:
    """The plain autoregression of order 2."""

    def __init__(self, num_ranks: int) -> None:
        self._model = Autoregression(num_ranks)

    def next_seconds(self, measurement: Measurement) -> NDArray[np.float64]:
        """Takes in a step, returns the seconds of the next one, shape `[ranks]`."""
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
        at_changes: Root mean square over the steps at which a slowdown begins or ends;
            None if there are none.
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
    """Plays a scenario with the even split, step by step, and lets all predictors foresee it."""
    conditions = Conditions.of(scenario)
    cluster, found = Cluster(conditions), predictors(scenario.size)
    shares = [1.0] * scenario.size
    plan = Plan.proportional(scenario.global_batch_size, shares, scenario.bounds)
    batch_sizes = np.asarray(plan.batch_sizes)
    undisturbed = conditions.curves.seconds(batch_sizes)
    timeline = conditions.timeline()
    foreseen: dict[str, NDArray[np.float64]] = {}
    errors: dict[str, list[NDArray[np.float64]]] = {name: [] for name in found}
    changed: list[NDArray[np.bool_]] = []
    factor = np.ones(scenario.size)
    for step in range(scenario.steps):
        measurement = cluster.measure([cluster.play(batch_sizes, step + 1)])
        segment = timeline.segment(step)
        if step >= LEARNING_STEPS:
            changed.append(~np.isclose(segment.factor, factor))
            for name, seconds in foreseen.items():
                errors[name].append(undisturbed / seconds - undisturbed / measurement.busy_seconds)
        factor = segment.factor
        foreseen = {name: model.next_seconds(measurement) for name, model in found.items()}
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
        ranks=(AffineRanks(count=64, fixed_ms=2, per_sample_ms=3, spread=0.15),),
        steps=600,
        noise=Noise(jitter=0.05),
        disturbances=(
            RandomNeighbours(
                mean_quiet_steps=neighbours.get("quiet", 60),
                mean_busy_steps=neighbours.get("busy", 25),
                least_slowdown=neighbours.get("least", 1.3),
                most_slowdown=neighbours.get("most", 2.5),
                lead_steps=int(neighbours.get("lead", 1)),
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
        "late": lambda: _contention("readings a step late", lead=0),
        "jitter": lambda: replace(
            _contention("no neighbours", quiet=1e9), disturbances=(FalseAlarms(),)
        ),
    }
)
"""Contention cases by name."""
