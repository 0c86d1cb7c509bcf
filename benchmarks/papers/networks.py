"""The small recurrent networks that LB-BSP compared NARX with, trained on part of a record."""

from __future__ import annotations

import keras
import numpy as np
from numpy.typing import NDArray

WINDOW = 8
"""Steps that a network sees at once."""
_UNITS = 8
"""As many as NARX has."""
_EPOCHS = 60
_SEED = 1


def forecast(
    kind: str, inputs: NDArray[np.float64], speeds: NDArray[np.float64], horizon: int, first: int
) -> NDArray[np.float64]:
    """Speeds foretold after each step by a network that was trained on the first ones.

    Args:
        kind: "RNN" or "LSTM".
        inputs: Speed and loads at the end of each step, shape `[steps, inputs]`.
        speeds: Of each step, shape `[steps]`.
        horizon: Steps to look ahead.
        first: Steps to learn from.

    Returns:
        At k what is foretold after step k for step k + horizon, shape `[steps]`; NaN for the first.
    """
    keras.utils.set_random_seed(_SEED)
    mean, deviation = inputs[:first].mean(axis=0), inputs[:first].std(axis=0) + 1e-6
    scaled = (inputs - mean) / deviation
    windows = np.stack([scaled[k - WINDOW + 1 : k + 1] for k in range(WINDOW - 1, len(scaled))])
    # What is learnt is the change from the last speed, in deviations, as NARX does.
    change = (speeds[horizon:] - speeds[:-horizon]) / deviation[0]
    layer = {"RNN": keras.layers.SimpleRNN, "LSTM": keras.layers.LSTM}[kind]
    model = keras.Sequential(
        [keras.layers.Input(windows.shape[1:]), layer(_UNITS), keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", jit_compile=False)
    count = first - horizon - WINDOW + 1
    model.fit(
        windows[:count],
        change[WINDOW - 1 : WINDOW - 1 + count],
        epochs=_EPOCHS,
        batch_size=32,
        verbose=0,
    )
    foretold = np.full(len(speeds), np.nan)
    outputs = model.predict(windows, batch_size=512, verbose=0)[:, 0]
    foretold[WINDOW - 1 :] = speeds[WINDOW - 1 :] + deviation[0] * outputs
    return np.clip(foretold, speeds[:first].min(), speeds[:first].max())
