"""The mechanisms of `adaptive`, and how to switch each of them off from outside.

A patch replaces a function or a constant where its users look it up. A patch whose target no longer
exists is an error, and so is one that changes nothing (`Mechanism.switched_off`).

Not in the table: the first plan, the depth of the data pipeline and the seconds of communication
that a gain is compared with (not simulated), and safety checks that no scenario reaches (records
that are not finite).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np

from hvd_dbs.balancing import posterior_curves
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.posterior_curves import PosteriorCurves, SlowPeriods
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.solvers import equal_finish, kinds, onsets, outlook, value_of_change
from hvd_dbs.balancing.solvers.decision_interval import DecisionInterval
from hvd_dbs.balancing.time_models import posterior, posterior_update, slow_periods, surprise
from hvd_dbs.simulator.watch import Watch

_RARE, _OFTEN = 10, 3
_INF = float("inf")
_PAUSES = PRIORS.pause_rate
_CANDIDATES = value_of_change._candidates

Patch = tuple[Any, str, Any]
"""An object, the name of one of its attributes, and the value that replaces it."""


@dataclass(frozen=True)
class Mechanism:
    """A part of `adaptive` that can be switched off.

    Attributes:
        off: What no longer happens, or happens instead.
        patches: What is replaced.
    """

    off: str
    patches: tuple[Patch, ...]

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """`adaptive` without this mechanism, in this process.

        Raises:
            AttributeError: If a patch's target no longer exists.
            ValueError: If a patch's target is its replacement already.
        """
        with ExitStack() as stack:
            for target, name, value in self.patches:
                if getattr(target, name) == value:
                    raise ValueError(f"{name} of {target} is {value!r} already; repair the patch.")
                stack.enter_context(mock.patch.object(target, name, value))
            yield


def _priors(*modules: Any, **values: float) -> list[Patch]:
    """Other priors in these modules."""
    return [(module, "PRIORS", replace(PRIORS, **values)) for module in modules]


_solve = DecisionInterval.solve


def _without_equal_shares(
    problem: Problem, curves: PosteriorCurves, *others: Any
) -> list[tuple[str, Plan]]:
    return [one for one in _CANDIDATES(problem, curves, *others) if one[0] != "equal shares"]


def _with_rounds_of(steps: int) -> Any:
    """Decisions after so many steps."""

    def solve(self: Any, state: Any, problem: Any, curves: Any) -> Any:
        proposal, state = _solve(self, state, problem, curves)
        return replace(proposal, steps_to_next=steps), {**state, "steps": steps}

    return solve


def _one_by_one(state: Any, periods: SlowPeriods) -> Any:
    return -np.expm1(-periods.rates * onsets._UNHELPED), state


_mixture = kinds._mixture


def _exactly_alike(*given: Any) -> Any:
    unlike, _, omega2 = _mixture(*given)
    return unlike, 0.0, omega2


def _nothing_unsure(self: Any, batch_sizes: Any, ranks: Any = None) -> Any:
    return np.zeros(batch_sizes.size if ranks is None else ranks.size)


_PARTS: dict[str, tuple[str, list[Patch]]] = {
    # What a surprise may be.
    "surprise: jump": (
        "A surprise at a new batch size is never a jump of the curve.",
        _priors(surprise, jump_rate=1e-12),
    ),
    "surprise: pause": (
        "A surprise is never a pause.",
        [(surprise, "_pause", lambda state, seen, z, known: np.full_like(z, -_INF))],
    ),
    "surprise: return": (
        "A surprise is never a return to the baseline speed.",
        _priors(posterior_update, slow=_INF),
    ),
    "surprise: drift": (
        "Surprises that keep pointing the same way do not add up.",
        [(posterior_update, "_LONGEST_TREND", _INF)],
    ),
    "surprise: pooled rates": (
        "Other ranks say nothing of how often a rank changes or pauses.",
        [(posterior.Posterior, "pool", lambda self, state, records: state)],
    ),
    "first steps": (
        "The first step at a batch size is a step like others, and free.",
        [
            (surprise, "chance_of_first", lambda state: np.full(len(state["rounds"]), _PAUSES)),
            (value_of_change, "_first_steps", lambda curves, plan: 0.0),
        ],
    ),
    # Slow periods.
    "slow periods": (
        "A slower pace is the usual one at once.",
        _priors(slow_periods, slow=_INF) + _priors(posterior_update, slow=_INF),
    ),
    "slow periods: old curve": (
        "The curve of the baseline speed is not kept through a slow period.",
        [(posterior_update, "_go_back", lambda *_: None)],
    ),
    # What is known of curves.
    "tiles": (
        "Multiples of 16 are like any other batch size.",
        [(posterior_curves, "tile_factor", np.ones_like)],
    ),
    "pooled noise": (
        "Other ranks say nothing of how noisy a rank is.",
        [(posterior, "pooled", lambda total, count: np.ones_like(total))],
    ),
    "first noise": (
        "The first round of a rank does not say how noisy it is.",
        [(posterior, "begin_noise", lambda *_: None)],
    ),
    "kinds": (
        "Ranks are never taken to be of a kind.",
        [(value_of_change, "drawn_together", lambda curves, plan, kinds: curves)],
    ),
    "kinds: slow again": (
        "What its kind takes is said of a rank that may be slow again, too.",
        [(kinds, "_may_be_slow_again", lambda curves, plan: np.zeros(plan.size, dtype=bool))],
    ),
    "kinds: spread": (
        "Ranks that are alike are equal.",
        [(kinds, "_mixture", _exactly_alike)],
    ),
    # The value of a change.
    "uncertainty": (
        "Plans are compared by what is expected of each rank alone.",
        [(PosteriorCurves, "deviations", _nothing_unsure)],
    ),
    "better of two": (
        "What a plan would show is worth nothing.",
        [(outlook, "BETTER_OF_TWO", 0.0), (value_of_change, "BETTER_OF_TWO", 0.0)],
    ),
    "risk": (
        "No rank is expected to become slow.",
        [(onsets, "_UNHELPED", 0.0)],
    ),
    "risk: learnt spread": (
        "Ranks differ in how often they become slow by a factor of about 3, whatever is seen.",
        [(posterior_curves, "_LARGEST_SHAPE", 1.0)],
    ),
    "risk: together": (
        "Ranks become slow one by one.",
        [(value_of_change, "note_onsets", _one_by_one)],
    ),
    "switch": (
        "A change of plan costs nothing.",
        _priors(value_of_change, switch=0.0),
    ),
    # Candidates.
    "trials": (
        "No trials of batch sizes that were not visited.",
        [(value_of_change, "_MOST_RANKS_TO_TRY", 0)],
    ),
    "precautions": (
        "No rank is taken to be slow beforehand.",
        [(value_of_change, "_precaution", lambda current, *_: np.zeros(current.size))],
    ),
    "equal shares": (
        "No equal shares for ranks of a kind.",
        [(value_of_change, "_candidates", _without_equal_shares)],
    ),
    "reach sum": (
        "On curves with holes, no search of every sum.",
        [(equal_finish, "_TO_THE_LEAST", 0)],
    ),
    # When to decide.
    "cadence": (
        f"A decision each {_RARE} steps, unless a change signal comes first.",
        [(DecisionInterval, "solve", _with_rounds_of(_RARE))],
    ),
    "cadence: often": (
        f"The same each {_OFTEN} steps.",
        [(DecisionInterval, "solve", _with_rounds_of(_OFTEN))],
    ),
    "change signals": (
        "No round begins early because a rank's steps changed.",
        [(Watch, "look", lambda watch, pieces: None)],
    ),
}

MECHANISMS: Mapping[str, Mechanism] = MappingProxyType(
    {name: Mechanism(off, tuple(patches)) for name, (off, patches) in _PARTS.items()}
)
"""What can be switched off, by name."""
