"""The model of LB-BSP on CPUs: speed from past speeds and the load of the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import AffineCurves
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.time_models.time_model import ModelState

_DELAY = 2
_NUM_INPUTS = 3 * _DELAY + 3
_NUM_HIDDEN = 8
_AVERAGE_WEIGHT = 0.3
_ROWS_AT_ONCE = 128
"""Networks trained together: what they need fits into a processor's cache."""


@dataclass(frozen=True)
class Narx:
    """v(k) = F(v(k-1..k-2), c(k..k-2), m(k..k-2)); t_i(b) = b / v.

    v is the speed in samples per second, c and m the processor and memory load of the host, past
    and current. F is a network of one hidden layer of 8 tanh units for each rank, trained online
    on the last rounds: every few rounds, a bounded number of gradient steps for the hidden layer
    and the least-squares solution (with decay) for the output layer, which adds its word to the
    last speed. Until enough has been seen, and wherever a load is not known, an exponentially
    weighted mean of speeds answers; what F says is clipped to the range of speeds seen.

    The load in a measurement is the one at the end of its round: current for the round to come,
    whose speed is predicted. Delay, size, schedule and the least-squares step are ours; the
    paper's were not recovered.

    Args:
        buffer: Rounds to learn from.
        enough: Rounds to see before the network is asked.
        train_every: Rounds between two trainings.
        num_gradient_steps: Steps of each training.

    References:
        Chen et al., "Semi-Dynamic Load Balancing" (LB-BSP), SoCC 2020, for CPU clusters;
        Diaconescu, "The use of NARX neural networks to predict chaotic time series", 2008.
    """

    record_size = 1

    buffer: int = 64
    enough: int = 16
    train_every: int = 2
    num_gradient_steps: int = 4

    def __post_init__(self) -> None:
        is_possible = 4 <= self.enough <= self.buffer
        if not (is_possible and self.train_every >= 1 and self.num_gradient_steps >= 0):
            raise ValueError(
                f"{self}: expected 4 <= enough <= buffer, train_every at least 1, "
                f"num_gradient_steps not negative."
            )

    def init(self, num_rows: int) -> ModelState:
        """Networks that say "as before", and empty buffers."""
        unit, entry = np.meshgrid(np.arange(_NUM_HIDDEN), np.arange(_NUM_INPUTS))
        # Any spread of directions serves; these are the same on every machine.
        hidden = 0.8 * np.sin(1.0 + 2.399963 * (unit * _NUM_INPUTS + entry))
        return {
            "inputs": np.full((num_rows, self.buffer, _NUM_INPUTS), np.nan),
            "targets": np.full((num_rows, self.buffer), np.nan),
            "speeds": np.full((num_rows, _DELAY), np.nan),
            "loads": np.full((num_rows, 2, _DELAY + 1), np.nan),
            "average": np.full(num_rows, np.nan),
            "num_rounds": np.zeros(num_rows),
            "hidden": np.broadcast_to(hidden, (num_rows, *hidden.shape)).copy(),
            "output": np.zeros((num_rows, _NUM_HIDDEN + 1)),
        }

    def update(self, state: ModelState, measurement: Measurement) -> ModelState:
        """Learns from a round; a round without a usable timing changes nothing."""
        usable = measurement.usable
        speed = np.where(usable, measurement.batch_sizes / measurement.busy_seconds, np.nan)
        average = state["average"]
        moved = average + _AVERAGE_WEIGHT * (speed - average)
        loads = np.stack([measurement.cpu_load, measurement.memory_load], axis=1)
        new: ModelState = {
            "inputs": np.concatenate([_inputs(state)[:, np.newaxis], state["inputs"][:, :-1]], 1),
            "targets": np.concatenate([speed[:, np.newaxis], state["targets"][:, :-1]], 1),
            "speeds": np.concatenate([speed[:, np.newaxis], state["speeds"][:, :-1]], 1),
            "loads": np.concatenate([loads[:, :, np.newaxis], state["loads"][:, :, :-1]], 2),
            "average": np.where(np.isfinite(average), moved, speed),
            "num_rounds": state["num_rounds"] + 1,
        }
        for name, values in new.items():
            known = usable.reshape(-1, *[1] * (values.ndim - 1))
            new[name] = np.where(known, values, state[name])
        new["hidden"], new["output"] = state["hidden"], state["output"]
        due = usable & (new["num_rounds"] % self.train_every == 0)
        due &= new["num_rounds"] >= self.enough
        if np.any(due):
            new["hidden"], new["output"] = new["hidden"].copy(), new["output"].copy()
        for start in range(0, due.size, _ROWS_AT_ONCE):
            rows = start + np.flatnonzero(due[start : start + _ROWS_AT_ONCE])
            if rows.size:
                new["hidden"][rows], new["output"][rows] = self._train(new, rows)
        return new

    def predict(self, state: ModelState) -> NDArray[np.float64]:
        """Samples per second in the round to come, shape `[rows]`; NaN where nothing is known."""
        inputs = _inputs(state)
        scale = state["average"]
        features = _features(inputs[:, np.newaxis], scale)
        word = np.einsum(
            "rh,rh->r", _hidden_units(features, state["hidden"])[:, 0], state["output"]
        )
        predicted = inputs[:, 0] + scale * word
        least = np.nanmin(state["targets"], axis=1, initial=np.inf)
        most = np.nanmax(state["targets"], axis=1, initial=-np.inf)
        asked = (state["num_rounds"] >= self.enough) & np.isfinite(predicted)
        return np.where(asked, np.clip(predicted, least, most), state["average"])

    def record(self, state: ModelState) -> NDArray[np.float64]:
        """Predicted seconds per sample, shape `[rows, 1]`."""
        return (1.0 / self.predict(state))[:, np.newaxis]

    def curves(self, records: NDArray[np.float64]) -> AffineCurves:
        """Lines through the origin: on a CPU the time is in proportion to the samples."""
        return AffineCurves(fixed=np.zeros(len(records)), per_sample=records[:, 0])

    def _train(
        self, state: ModelState, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Hidden and output layers of `rows` after one training."""
        inputs, targets = state["inputs"][rows], state["targets"][rows]
        scale = state["average"][rows]
        features = _features(inputs, scale)
        wanted = (targets - inputs[:, :, 0]) / scale[:, np.newaxis]
        counts = np.isfinite(wanted) & np.all(np.isfinite(features), axis=2)
        features = np.where(counts[:, :, np.newaxis], features, 0.0)
        wanted = np.where(counts, np.clip(wanted, -2.0, 2.0), 0.0)
        weights = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        hidden = state["hidden"][rows]
        units = _hidden_units(features, hidden)
        output = _least_squares(units, wanted, weights)
        for _ in range(self.num_gradient_steps):
            error = (np.einsum("rsh,rh->rs", units, output) - wanted) * weights
            tanh = units[:, :, :-1]
            slope = error[:, :, np.newaxis] * output[:, np.newaxis, :-1] * (1 - tanh**2)
            gradient = np.matmul(features.transpose(0, 2, 1), slope)
            size = np.sqrt(np.sum(gradient**2, axis=(1, 2), keepdims=True))
            hidden = hidden - 0.1 * gradient / np.maximum(size, 0.1)
            units = _hidden_units(features, hidden)
            output = _least_squares(units, wanted, weights)
        return hidden, output


def _inputs(state: ModelState) -> NDArray[np.float64]:
    """What is known before the coming round, shape `[rows, inputs]`: v, then c, then m."""
    loads = state["loads"].reshape(len(state["loads"]), -1)
    # A job without a memory figure still has its processor load, and the reverse.
    half = np.split(loads, 2, axis=1)
    none = [np.all(np.isnan(part), axis=1, keepdims=True) for part in half]
    loads = np.concatenate(
        [np.where(n, 0.0, part) for n, part in zip(none, half, strict=True)], axis=1
    )
    known = ~(none[0] & none[1])[:, 0]
    loads = np.where(known[:, np.newaxis], loads, np.nan)
    bias = np.ones((len(loads), 1))
    return np.concatenate([state["speeds"], loads, bias], axis=1)


def _features(inputs: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inputs of order 1: speeds against the mean speed, loads around a half."""
    speeds = inputs[..., :_DELAY] / scale[:, np.newaxis, np.newaxis] - 1.0
    loads = 2.0 * inputs[..., _DELAY:-1] - 1.0
    return np.concatenate([np.clip(speeds, -3.0, 3.0), loads, inputs[..., -1:]], axis=-1)


def _hidden_units(
    features: NDArray[np.float64], hidden: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Tanh units and a constant, shape `[rows, samples, hidden + 1]`."""
    units = np.tanh(np.matmul(features, hidden))
    return np.concatenate([units, np.ones((*units.shape[:-1], 1))], axis=-1)


def _least_squares(
    units: NDArray[np.float64], wanted: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Output layer with decay, shape `[rows, hidden + 1]`."""
    weighted = units * weights[:, :, np.newaxis]
    square = np.matmul(weighted.transpose(0, 2, 1), units) + 1e-3 * np.eye(units.shape[-1])
    right = np.einsum("rsh,rs->rh", weighted, wanted)
    solved: NDArray[np.float64] = np.linalg.solve(square, right[:, :, np.newaxis])[:, :, 0]
    return solved
