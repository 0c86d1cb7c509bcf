"""What the simulator's ranks measure of a round is what ranks of a job do."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing.measurement import typical_seconds, typical_steps
from hvd_dbs.balancing.order_statistics import MEDIAN, QUARTILE, lower_value
from hvd_dbs.simulator.round_means import typical_by_rank


def test_round_means_are_those_of_the_job():
    random = np.random.default_rng(3)
    for num_steps in (1, 2, 3, 4, 9, 20):
        seconds = random.lognormal(sigma=0.9, size=(num_steps, 200))
        for warmup in (0, 2):
            means, counts, *lower = typical_by_rank(seconds, warmup=warmup)
            for found, parts in zip(lower, (QUARTILE, MEDIAN), strict=True):
                kept = [typical_steps(column, warmup)[:, np.newaxis] for column in seconds.T]
                assert found.tolist() == [lower_value(column, parts)[0] for column in kept]
            expected = [typical_seconds(column, warmup) for column in seconds.T]
            assert means.tolist() == pytest.approx(expected)
            assert counts.max() <= max(num_steps - warmup, 1)
            measured = np.arange(num_steps) % 3 != 0
            known = np.where(measured[:, np.newaxis], seconds, np.nan)
            means, *_ = typical_by_rank(seconds, measured, warmup)
            expected = [typical_seconds(column, warmup) for column in known.T]
            assert means.tolist() == pytest.approx(expected, nan_ok=True)
