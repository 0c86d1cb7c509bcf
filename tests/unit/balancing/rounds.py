"""Rounds that a time model folds in, and what it says of them."""

from __future__ import annotations

import numpy as np

from hvd_dbs.balancing import Measurement


def fold(model, rounds, state=None, **fields):
    """Rounds of one rank: (batch size, seconds) each."""
    state = model.init(1) if state is None else state
    for b, t in rounds:
        state = model.update(state, Measurement.of([b], [t], **fields))
    return state


def seconds_at(model, state, batch_size):
    curves = model.curves(model.record(state))
    return float(curves.seconds(np.array([float(batch_size)]))[0])
