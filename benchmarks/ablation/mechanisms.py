"""The mechanisms of `adaptive`, and how to switch each of them off from outside.

A patch replaces a function or a constant where its users look it up. A patch whose target no longer
exists is an error, and so is one that changes nothing (`Mechanism.switched_off`).

Not in the table: parts that only matter from 4,096 ranks on (`_THOUSANDS`, sampling of rows), the
first plan and the depth of the data pipeline (neither is simulated), and safety checks that no
scenario reaches (too large a ratio of speeds, records that are not finite).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np

from hvd_dbs.balancing import strategies, visited_curves
from hvd_dbs.balancing.curves import ELASTICITY
from hvd_dbs.balancing.solvers import candidates, equal_finish, foresight, worth_the_switch
from hvd_dbs.balancing.solvers.worth_asking import WorthAsking
from hvd_dbs.balancing.time_models import load_warning, point_curve, visited_points
from hvd_dbs.simulator import simulation

_RARE, _OFTEN = 10, 3
_INF = float("inf")

_LOAD = ("load", "load_noise", "load_sums", "load_jump", "warned")
_SLOW_PERIODS = ("slower", "spell", "past_slower")

Patch = tuple[Any, str, Any]
"""An object, the name of one of its attributes, and the value that replaces it."""


@dataclass(frozen=True)
class Mechanism:
    """A part of `adaptive` that can be switched off.

    Attributes:
        off: What no longer happens, or happens instead.
        patches: What is replaced.
        least_ranks: With fewer ranks it does nothing by design, and is not run.
    """

    off: str
    patches: tuple[Patch, ...]
    least_ranks: int = 0

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


def _kept(*names: str) -> Any:
    """A function that leaves the entries of a model's state as they are."""
    return lambda state, *_: {name: state[name] for name in names}


def _believed_at_once(suspect: Any, surprise: Any, far: Any, usable: Any) -> Any:
    return far, np.zeros_like(suspect)


def _last_pace(state: Any, pace: Any, steps: Any, usable: Any) -> Any:
    heard = usable & np.isfinite(pace)
    return {
        "usual": np.where(heard, pace, state["usual"]),
        "usual_steps": np.where(heard, steps, state["usual_steps"]),
        "unusual_steps": state["unusual_steps"],
    }


_looked_around, _solve = worth_the_switch._looked_around, WorthAsking.solve


def _without_second_look(state: Any, problem: Any, visited: Any) -> Any:
    seconds = visited.seconds(problem.current.samples)
    odd_rank = int(np.argmax(np.abs(seconds / np.median(seconds) - 1.0)))
    return _looked_around({**state, "odd_rank": odd_rank}, problem, visited)


def _with_rounds_of(steps: int) -> Any:
    """Decisions after so many steps."""

    def solve(self: Any, state: Any, problem: Any, curves: Any) -> Any:
        proposal, state = _solve(self, state, problem, curves)
        return replace(proposal, steps_to_next=steps), {**state, "steps": steps}

    return solve


def _plain_times(points: Any, times: Any, counts: Any, state: Any) -> Any:
    return times


def _only_moves(self: Any, num_trials: int) -> Any:
    return self.move(np.inf, None)


_PARTS: dict[str, tuple[str, list[Patch]]] = {
    # What the hosts' load shows.
    "load": (
        "The hosts' load is not used.",
        [(visited_points, "read_load", _kept(*_LOAD))],
    ),
    "load: beforehand": (
        "Load never scales a curve beforehand; it only makes a change that follows believed.",
        [(load_warning, "_MOST_FACTOR", 0.0)],
    ),
    # Slow periods that are expected to come again.
    "foresight": (
        "No rank is planned to be slower than it is.",
        [(worth_the_switch, "foresee", lambda state, *_: (state, None))],
    ),
    "foresight: slow before": (
        "No guard of ranks that have been slow before.",
        [(foresight, "_LEAST_BETTER", _INF)],
    ),
    "foresight: all ranks": (
        "No guard of all ranks where steps take longer than promised.",
        [(foresight, "_LEAST_RISK", _INF)],
    ),
    "slow periods": (
        "Slow periods of a rank are not recorded.",
        [(visited_points, "slow_spells", _kept(*_SLOW_PERIODS))],
    ),
    "usual pace": (
        "A rank's usual pace is that of its last round.",
        [(visited_points, "usual_pace", _last_pace)],
    ),
    # Whether there is anything to find.
    "peace": (
        "Plans change although the ranks differ no more than noise explains.",
        [(worth_the_switch, "_nothing_to_find", lambda *_: False)],
    ),
    "peace: plainly unequal": (
        "Ranks that are plainly unequal do not end an even split sooner.",
        [(worth_the_switch, "plainly_unequal", lambda *_: False)],
    ),
    "peace: noise known": (
        "An even split is left before noise is known (4 rounds).",
        [(worth_the_switch, "_ROUNDS_TO_KNOW_NOISE", 0)],
    ),
    # Candidates.
    "trials": (
        "No trials of batch sizes that were not visited.",
        [(candidates.Search, "trial_or_move", _only_moves)],
    ),
    "trials: less hope": (
        "The hope of trials does not fall with their number.",
        [(candidates, "_HOPE_DECAY", 0.0)],
    ),
    "trials: gaps": (
        "Between points close to each other there is as much to hope for as elsewhere.",
        [(visited_curves, "_FULL_HOPE_GAP", 1e-9)],
    ),
    "round numbers": (
        "No trials of multiples of 16.",
        [(worth_the_switch, "_ROUND_TRIALS", 0)],
    ),
    "refinement": (
        "Plans that have lasted are not refined.",
        [
            (worth_the_switch, "_REFINED_ROUNDS", _INF),
            (worth_the_switch, "_REFINED_ROUNDS_OF_MANY", _INF),
        ],
    ),
    "reach sum": (
        "On curves with holes, no search of every sum.",
        [(equal_finish, "_TO_THE_LEAST", 0)],
    ),
    # The least gain of a change.
    "gain: 0.5 %": (
        "A change needs no least gain of its own.",
        [(worth_the_switch, "_GAIN", 0.0)],
    ),
    "gain: by changes": (
        "The least gain does not grow with the number of changes.",
        [(worth_the_switch, "_GAIN_GROWTH", 0.0)],
    ),
    "gain: by calm": (
        "The least gain does not grow with the rounds that a plan has lasted.",
        [(worth_the_switch, "_CALM_GAIN", 0.0)],
    ),
    "gain: by noise": (
        "The first change's least gain does not depend on noise.",
        [(worth_the_switch, "_NOISE_GAIN", 0.0)],
    ),
    "gain: even split": (
        "An even split is left for as little as any other plan.",
        [(worth_the_switch, "_EVEN_GAIN", 0.0)],
    ),
    "gain: new start": (
        "Another step time (5 %) does not reset the solver.",
        [(worth_the_switch, "_NEW_PACE", _INF)],
    ),
    "unrest": (
        "Trials go on in the rounds after a change of pace.",
        [(worth_the_switch, "_ROUNDS_OF_UNREST", 0)],
    ),
    # When to decide.
    "all: adaptive_v2": (
        "`adaptive_v2` runs instead; a loss is what it gains.",
        [(strategies, "PRESETS", {**strategies.PRESETS, "adaptive": strategies.adaptive_v2})],
    ),
    "cadence": (
        f"A decision each {_RARE} steps, unless a change signal comes first.",
        [(WorthAsking, "solve", _with_rounds_of(_RARE))],
    ),
    "cadence: often": (
        f"The same each {_OFTEN} steps.",
        [(WorthAsking, "solve", _with_rounds_of(_OFTEN))],
    ),
    "change signals": (
        "No round begins early because a rank's steps changed.",
        [(simulation, "watched_from", lambda *_: None)],
    ),
    # Surprises.
    "change: seen twice": (
        "Each far time is believed at once, pauses too.",
        [(visited_points, "confirm", _believed_at_once)],
    ),
    "change: at once": (
        "No far time is believed before it was seen twice, however far it is.",
        [(visited_points, "_CLEAR", _INF)],
    ),
    "change: pauses": (
        "What may be a pause in a round of few steps is believed at once.",
        [(visited_points, "_PAUSE", _INF)],
    ),
    "change: forgetting": (
        "After a large change, points at other batch sizes are kept.",
        [(visited_points, "_OTHER_CURVE", _INF)],
    ),
    "change: fading": (
        "After a change, the points count as much as before it.",
        [(visited_points, "_STEPS_AFTER_CHANGE", _INF)],
    ),
    "drift": (
        "Small differences in the same direction do not add up.",
        [(visited_points, "_DRIFT_LEAST", _INF)],
    ),
    "drift: fading": (
        "After a drift, the points count as much as before it.",
        [(visited_points, "_STEPS_AFTER_DRIFT", _INF)],
    ),
    "strange points": (
        "A time at a new batch size is believed however far off it is.",
        [
            (
                visited_points,
                "_new_point_surprise",
                lambda state, b, t, expected: np.zeros_like(t),
            )
        ],
    ),
    "first step": (
        "The first step of a batch size counts like any other.",
        [(visited_points, "_FIRST_STEP", 0.0)],
    ),
    "first rounds": (
        "In the first rounds a surprise needs to be no larger than later.",
        [(visited_points, "_UNSURE", 0.0)],
    ),
    "believed noise": (
        "Noise is what was seen, from the first rounds on.",
        [(visited_points, "_believed_noise", lambda state: state["noise"])],
    ),
    # The curve.
    "memory": (
        "Two batch sizes are remembered instead of eight.",
        [(strategies, "VisitedPoints", functools.partial(visited_points.VisitedPoints, 2))],
    ),
    "line": (
        "Points are not drawn to a line.",
        [(visited_points, "drawn_to_line", _plain_times)],
    ),
    "line: misses": (
        "The line never replaces points because it predicted repeat visits as well.",
        [(point_curve, "_TOOTHED", 1e9), (point_curve, "_SMOOTH", 2e9)],
    ),
    "slope": (
        f"The slope beyond the points is not fitted: {ELASTICITY} of what samples do.",
        [(point_curve, "_ELASTICITY_SIGMA", 1e-6)],
    ),
    "least slope": (
        "Below the smallest point a step may stay as long as it is there.",
        [(visited_curves, "_LEAST_ELASTICITY", 0.0)],
    ),
}

_OF_MANY: dict[str, tuple[str, list[Patch]]] = {
    "peace: second look": (
        "Among many equal ranks, the same one need not be odd twice.",
        [(worth_the_switch, "_looked_around", _without_second_look)],
    ),
    "growth": (
        "Among many ranks, a move may give a rank any number of samples more at once.",
        [(worth_the_switch, "_MOST_GROWTH", _INF)],
    ),
}

_MANY = worth_the_switch._MOST_RANKS_TO_TRY + 1

MECHANISMS: Mapping[str, Mechanism] = MappingProxyType(
    {
        name: Mechanism(off, tuple(patches), least_ranks)
        for parts, least_ranks in ((_PARTS, 0), (_OF_MANY, _MANY))
        for name, (off, patches) in parts.items()
    }
)
"""What can be switched off, by name."""
