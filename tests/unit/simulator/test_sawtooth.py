"""The generator of saw-toothed curves."""

import numpy as np
import pytest

from hvd_dbs.simulator.sawtooth import sawtooth_seconds


@pytest.mark.parametrize("seed", range(5))
def test_teeth_go_up_and_down_but_follow_the_line(seed):
    samples = np.arange(1, 257)
    worth = sawtooth_seconds(samples, 16, 0.4, np.random.default_rng(seed))
    steps = np.diff(worth)
    assert steps.min() < -1 and steps.max() > 3
    settled = samples >= 32
    assert np.all(np.abs(worth / samples - 1)[settled] < 0.45)
    assert np.all(worth > 0)


def test_no_roughness_is_a_line():
    worth = sawtooth_seconds(np.arange(1, 50), 8, 0.0, np.random.default_rng(1))
    assert worth == pytest.approx(np.arange(1, 50))
