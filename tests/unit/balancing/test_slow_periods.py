"""Slow periods of ranks: how often, how long, and whether they begin together."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing.posterior_curves import SlowPeriods
from hvd_dbs.balancing.solvers.onsets import no_onsets, note_onsets

SIZE = 64


def chance_of_some(begins, num_rounds=200, steps=3, always_slow=()):
    """That any rank is slow and cannot have been helped, after rounds in which ranks became slow.

    Args:
        begins: How many do, by round.
        always_slow: Ranks that are slow since round 100.
    """
    state, number = no_onsets(), np.zeros(SIZE)
    for k in range(num_rounds):
        number[np.arange(begins(k)) + k % (SIZE // 2)] += 1
        quiet, slower = np.full(SIZE, steps * (k + 1.0)), np.zeros(SIZE)
        if k >= 100:
            quiet[list(always_slow)] = steps * 100.0
            slower[list(always_slow)] = 0.5
        # One that has never been slow before.
        number[list(always_slow)] = 0.0
        periods = SlowPeriods(slower, number.copy(), 0.5 * number, quiet)
        chance, state = note_onsets(state, periods)
    return 1 - np.prod(1 - chance)


def test_ranks_that_become_slow_one_by_one_are_expected_to():
    rng = np.random.default_rng(0)
    found = chance_of_some(lambda k: int(rng.poisson(0.3)))
    assert found == pytest.approx(1 - np.exp(-0.5), abs=0.12)  # 0.1 a step, and 5 steps.


def test_ranks_that_become_slow_together_make_fewer_steps_long():
    """As many in all, but twenty in one of twenty rounds."""
    one_by_one = chance_of_some(lambda k: 1)
    together = chance_of_some(lambda k: 20 if k % 20 == 0 else 0)
    assert together < 0.2 < 0.7 < one_by_one


def test_steps_of_ranks_that_are_not_slow_count_while_another_is():
    """Else fewer would be expected to become slow, and together would look like one by one."""
    found = [
        chance_of_some(lambda k: 20 if k % 20 == 0 else 0, steps=20, always_slow=slow)
        for slow in ((), (0,))
    ]
    assert found[1] == pytest.approx(found[0], abs=0.005)


def test_a_slow_period_is_expected_to_be_as_those_of_all_ranks():
    """Those of one rank differ as much, and there are few of them."""
    number, slower = np.array([1.0, 1.0, 0.0, 2.0]), np.array([0.0, 0.0, 0.0, 0.3])
    sizes = number * np.array([0.2, 0.8, 0.0, 0.7])
    periods = SlowPeriods(slower, number, sizes, np.full(4, 100.0))
    assert periods.further.tolist() == pytest.approx([0.6, 0.6, 0.6, 0.3])
