"""The plug point of solvers, and of guards, which are solvers around a solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Plan, Problem

SolverState: TypeAlias = dict[str, Any]
"""What a solver remembers from one decision to the next: plain JSON data."""


@dataclass(frozen=True)
class Proposal:
    """What a solver asks for.

    Attributes:
        plan: The plan to use from now on.
        reason: What only the solver knows: why it keeps the plan, what it holds back. May be "".
        steps_to_next: Steps after which it wants to be asked again; None: no wish. Used where
            the strategy's cadence is "automatic".
    """

    plan: Plan
    reason: str = ""
    steps_to_next: int | None = None


class Solver(Protocol):
    """Finds the plan that time curves ask for.

    A guard (dead band, limit on change, minimum gain) has the same shape: it holds a solver,
    asks it, and returns its proposal, a smaller one, or the plan in force with the reason.
    """

    def init(self) -> SolverState:
        """The state before the first decision."""
        ...

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """The plan that is best by the curves, within the bounds, and the next state."""
        ...


def entries_of(state: SolverState) -> list[str]:
    """The names in a solver's state, those of the solver inside a guard included."""
    names = []
    for name, value in state.items():
        inside = entries_of(value) if isinstance(value, dict) else []
        names += [name, *(f"{name}.{entry}" for entry in inside)]
    return sorted(names)
