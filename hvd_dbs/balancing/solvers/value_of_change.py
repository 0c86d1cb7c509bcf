"""A plan is changed where that is worth more than it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.posterior_curves import PosteriorCurves
from hvd_dbs.balancing.priors import PRIORS
from hvd_dbs.balancing.solvers.equal_finish import equal_finish
from hvd_dbs.balancing.solvers.kinds import Kinds, drawn_together
from hvd_dbs.balancing.solvers.onsets import no_onsets, note_onsets
from hvd_dbs.balancing.solvers.outlook import BETTER_OF_TWO, longest, outlooks
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState

_HOPE = np.sqrt(2 / np.pi)
"""E[|Z|] of a standard normal Z: a trial hopes for as much luck as there may well be."""
_MOST_RANKS_TO_TRY = 32
"""Among more ranks, the unluckiest of all makes a trial's step long: none is worth it."""
_NOT_WORTH_IT = "no change is worth it"


@dataclass(frozen=True)
class ValueOfChange:
    """Of a few plans the one worth most, if it is worth more than the plan in force.

    With J the expected log of a step's time (`outlooks`), J' once what a plan shows has been used,
    L = 1 / `change_rate` the steps that a plan is expected to last, and C the price of a switch in
    steps, a plan is worth

        L (J'(now) - J'(plan)) - max(C, L / life * first steps / busy),

    life being what the pace of the slowest rank is expected to last, L at most: the next plan will
    have first steps too. To stay shows what that rank takes, so J'(now) is J(now) less what may be
    gained by knowing it, times life / L. While first steps hide what a rank takes with the plan in
    force, a plan has to gain more in a step than its own first steps cost.

    Candidates are the plan with the shortest step by the curves (a move) or, where that promises
    more, by curves of ranks that are taken to be slow beforehand (a precaution), equal shares for
    ranks of a kind, and the plan by hopeful curves (a trial).

    With curves other than `PosteriorCurves`, which are taken to be sure, there are moves alone.
    """

    def init(self) -> SolverState:
        """Nothing is known of slow periods."""
        return no_onsets()

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The plan that is worth most."""
        current = problem.current
        if not isinstance(curves, PosteriorCurves):
            plan = _sure_plan(problem, curves)
            return Proposal(plan, _NOT_WORTH_IT if plan == current else ""), state
        chance, state = note_onsets(state, curves.periods)
        is_seen = not _unseen(curves, current).any()
        kinds = Kinds.of(current)
        curves = drawn_together(curves, current, kinds)
        seconds = curves.seconds(current.samples)
        slowest = int(np.argmax(seconds))
        lasting = min(PRIORS.change_rate * float(curves.life[slowest]), 1.0)
        best, most, reason = current, 0.0, _NOT_WORTH_IT
        candidates = _candidates(problem, curves, chance, kinds)
        others = [(kind, plan) for kind, plan in candidates if plan != current]
        if not others:
            return Proposal(best, reason), state
        now, later = outlooks(curves, chance, current, [plan for _, plan in others])
        # To stay shows what the slowest rank takes, which is of use while its pace lasts.
        now -= lasting * BETTER_OF_TWO * float(curves.deviations(current.samples)[slowest])
        for (kind, plan), then in zip(others, later.tolist(), strict=True):
            first_steps = _first_steps(curves, plan) / float(seconds[slowest])
            if not is_seen and now - then < first_steps:
                continue  # A step more shows what they have hidden, and costs less.
            value = (now - then) / PRIORS.change_rate - max(PRIORS.switch, first_steps / lasting)
            if value > most:
                best, most, reason = plan, value, f"{kind}, worth {value:.1f} steps"
        return Proposal(best, reason), state


def _sure_plan(problem: Problem, curves: TimeCurves) -> Plan:
    plan = equal_finish(problem, curves)
    now, then = (float(np.max(curves.seconds(one.samples))) for one in (problem.current, plan))
    is_worth_it = np.log(now / then) > PRIORS.change_rate * PRIORS.switch
    return plan if is_worth_it else problem.current


def _first_steps(curves: PosteriorCurves, plan: Plan) -> float:
    """Seconds by which a plan's first step takes longer, for batch sizes that are new to ranks."""
    return float(np.max(np.where(_unseen(curves, plan), curves.first_seconds, 0.0)))


def _unseen(curves: PosteriorCurves, plan: Plan) -> NDArray[np.bool_]:
    """Ranks of which it is not known what they take with their batch size, shape `[size]`."""
    return np.asarray(~np.any(curves.points == plan.samples, axis=0))


def _candidates(
    problem: Problem, curves: PosteriorCurves, chance: NDArray[np.float64], kinds: Kinds
) -> Iterator[tuple[str, Plan]]:
    """Plans to choose from."""
    slower = _precaution(problem.current, curves, chance)
    kind = "a precaution" if np.any(slower) else "a move"
    yield kind, equal_finish(problem, curves.shifted(slower))
    if np.any(problem.current.samples != kinds.batch_sizes):
        yield "equal shares", problem.apportion(kinds.batch_sizes)
    if problem.current.size <= _MOST_RANKS_TO_TRY:
        hopeful = curves.hopeful(_HOPE, problem.current.samples)
        yield "a trial", equal_finish(problem, hopeful)


def _precaution(
    current: Plan, curves: PosteriorCurves, chance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Log seconds by which ranks are taken to be slower, in case they become slow; shape `[size]`.

    No rank is, or those that are slow now and those that become slow more often than others, by as
    much as slow periods were in the mean, or two deviations more: whichever promises the shortest
    step, were each rank to keep its samples a second. With a shift s of some ranks the others
    finish at T, those at T exp(-s) before they are slow, and T = B / sum(rate exp(-s)).
    """
    periods = curves.periods
    if not periods.number.any():
        return np.zeros(current.size)
    further = curves.further
    risky = (periods.slower > PRIORS.slow) | (chance > chance.mean())
    slower = np.outer((0.0, 1.0, 1 + 2 * PRIORS.slow_sd), further * risky)
    samples = current.samples
    rates, sd = samples / curves.seconds(samples), curves.deviations(samples)
    together = -np.log(np.sum(rates * np.exp(-slower), axis=1, keepdims=True))
    promised = longest(together - slower, sd, chance, further)
    return np.asarray(slower[np.argmin(promised)])
