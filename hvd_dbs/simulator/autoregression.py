"""A plain autoregression of each rank's speed: what a forecast without host load can do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PRIOR = 100.0
"""Variance of the weights before the first step: they follow the data within a few steps."""


class Autoregression:
    """v(k) = w_0 + w_1 v(k-1) + ... + w_d v(k-d), fitted online by recursive least squares.

    Speeds are divided by the rank's first one, so that one prior fits all. The prior is the
    last value: w = (0, 1, 0, ...).

    Args:
        num_ranks: Number of ranks, each with weights of its own.
        order: d.
        forgetting: Weight of the past at each step; 1 never forgets.
    """

    def __init__(self, num_ranks: int, order: int = 2, forgetting: float = 0.999) -> None:
        self._forgetting = forgetting
        self._weights = np.zeros((num_ranks, order + 1))
        self._weights[:, 1] = 1.0
        self._covariance = np.tile(_PRIOR * np.eye(order + 1), (num_ranks, 1, 1))
        self._inputs = np.ones((num_ranks, order + 1))
        self._scale: NDArray[np.float64] | None = None

    def observe(self, speeds: NDArray[np.float64]) -> None:
        """Takes in the speeds of a step, samples a second, shape `[ranks]`."""
        if self._scale is None:
            self._scale = speeds
            return
        scaled = speeds / self._scale
        spread = np.einsum("rij,rj->ri", self._covariance, self._inputs)
        gain = spread / (self._forgetting + np.sum(spread * self._inputs, axis=1))[:, np.newaxis]
        error = scaled - np.sum(self._weights * self._inputs, axis=1)
        self._weights = self._weights + gain * error[:, np.newaxis]
        outer = gain[:, :, np.newaxis] * spread[:, np.newaxis, :]
        self._covariance = (self._covariance - outer) / self._forgetting
        lags = [scaled[:, np.newaxis], self._inputs[:, 1:-1]]
        self._inputs = np.concatenate([self._inputs[:, :1], *lags], axis=1)

    def predict(self) -> NDArray[np.float64]:
        """The speeds of the next step, samples a second, shape `[ranks]`."""
        if self._scale is None:
            raise RuntimeError("nothing was observed yet; call observe first.")
        return np.asarray(np.sum(self._weights * self._inputs, axis=1) * self._scale)
