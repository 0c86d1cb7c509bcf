"""Whether ranks become slow one by one, or many at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.change_signal import STEPS_WATCHED
from hvd_dbs.balancing.posterior_curves import SlowPeriods
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.solvers.solver import SolverState

_UNHELPED = STEPS_WATCHED + PRIORS.reaction
"""Steps of a rank that has become slow: those that show it, and those until a plan holds."""


def no_onsets() -> SolverState:
    """Before the first decision.

    "rounds": recent decisions, "with_some": those before which some rank had become slow,
    "expected": ranks that were expected to; "begun", "quiet": slow periods and steps until now.
    """
    return dict.fromkeys(("rounds", "with_some", "expected", "begun", "quiet"), 0.0)


def note_onsets(
    state: SolverState, periods: SlowPeriods
) -> tuple[NDArray[np.float64], SolverState]:
    """The chance that each rank is slow and nothing could have been done yet, shape `[size]`.

    Were they to begin one by one, n expected ones in a round would mean some in it with chance
    1 - exp(-n). Where ranks become slow together, such as by a network that they share, rounds
    with some are rarer than that, and n is made as much smaller.

    Args:
        state: As `no_onsets` and this function return it.
        periods: Of all ranks now.
    """
    keep = 1 - 1 / PRIORS.memory_rounds
    begun, quiet = periods.begun, float(periods.quiet.sum())
    rounds = keep * state["rounds"] + 1
    with_some = keep * state["with_some"] + float(begun > state["begun"])
    steps = max(quiet - state["quiet"], 1.0) / periods.quiet.size
    expected = keep * state["expected"] + float(periods.rates.sum()) * steps
    each = -np.log1p(-(with_some + 0.5) / (rounds + 1))
    independent = min(1.0, float(each * rounds / max(expected, 1e-9)))
    state = dict(rounds=rounds, with_some=with_some, expected=expected, begun=begun, quiet=quiet)
    return -np.expm1(-periods.rates * independent * _UNHELPED), state
