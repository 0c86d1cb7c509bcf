"""From time curves to a plan; one method a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hvd_dbs.balancing.solvers.dead_band import DeadBand
from hvd_dbs.balancing.solvers.decision_interval import DecisionInterval
from hvd_dbs.balancing.solvers.equal_finish import EqualFinish
from hvd_dbs.balancing.solvers.keep_plan import KeepPlan
from hvd_dbs.balancing.solvers.pair_shift import PairShift
from hvd_dbs.balancing.solvers.proportional import Proportional
from hvd_dbs.balancing.solvers.solver import Solver
from hvd_dbs.balancing.solvers.value_of_change import ValueOfChange

SOLVERS: Mapping[str, Callable[[], Solver]] = MappingProxyType(
    {
        "dead_band": lambda: DeadBand(EqualFinish()),
        "equal_finish": EqualFinish,
        "keep_plan": KeepPlan,
        "pair_shift": PairShift,
        "proportional": Proportional,
        "value_of_change": ValueOfChange,
        "decision_interval": lambda: DecisionInterval(EqualFinish()),
    }
)
"""All solvers by name, guards around equal finish; the conformance suite runs over each of them."""
