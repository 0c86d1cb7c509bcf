"""The methods by name: each is a choice of model, solver and cadence, not a code path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from types import MappingProxyType

from hvd_dbs.balancing.solvers.dead_band import DeadBand
from hvd_dbs.balancing.solvers.decision_interval import DecisionInterval
from hvd_dbs.balancing.solvers.equal_finish import EqualFinish
from hvd_dbs.balancing.solvers.keep_plan import KeepPlan
from hvd_dbs.balancing.solvers.pair_shift import PairShift
from hvd_dbs.balancing.solvers.proportional import Proportional
from hvd_dbs.balancing.solvers.solver import Solver
from hvd_dbs.balancing.solvers.value_of_change import ValueOfChange
from hvd_dbs.balancing.time_models.ewma import Ewma
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.balancing.time_models.narx_or_last import NarxOrLast
from hvd_dbs.balancing.time_models.overlap_affine import OverlapAffine
from hvd_dbs.balancing.time_models.posterior import Posterior
from hvd_dbs.balancing.time_models.time_model import TimeModel
from hvd_dbs.balancing.time_models.windowed_mean import WindowedMean

__all__ = [
    "Strategy",
    "adaptive",
    "cannikin",
    "dbs",
    "even",
    "lb_bsp_cpu",
    "lb_bsp_gpu",
    "observe",
    "omnilearn",
    "static",
]

Cadence = str | int | None
"""When decisions fall: "epoch", a number of steps, "automatic" (each decision says after how many
steps the next one is due, which may fall while a plan is on its way), or None for never."""


@dataclass(frozen=True)
class Strategy:
    """How a job is balanced.

    Attributes:
        name: What logs and reports call it.
        ratios: The split to start from, by rank; None starts even.
        model: Rank-local time model; None if nothing is ever decided.
        solver: Solver on rank 0, with its guards around it; None likewise.
        every: "epoch", a number of steps, "automatic", or None for never.
    """

    name: str
    ratios: tuple[float, ...] | None = None
    model: TimeModel | None = None
    solver: Solver | None = None
    every: Cadence = None

    def __post_init__(self) -> None:
        for part in (self.model, self.solver):
            if " at 0x" in repr(part):
                raise ValueError(
                    f"{part!r} does not show its settings, by which ranks see that theirs are the "
                    f"same. Make its class a frozen dataclass."
                )
        if (self.model is None) != (self.solver is None):
            raise ValueError(f"Strategy {self.name!r} needs both a model and a solver, or neither.")
        if (self.model is None) != (self.every is None):
            raise ValueError(
                f"every={self.every!r} does not fit strategy {self.name!r}: a strategy that "
                f"measures needs a cadence, one that does not has none."
            )
        if isinstance(self.every, Integral) and not isinstance(self.every, bool):
            object.__setattr__(self, "every", int(self.every))  # Also where NumPy has computed it.
        is_number = type(self.every) is int and self.every >= 1
        if self.every not in (None, "epoch", "automatic") and not is_number:
            raise ValueError(
                f'every={self.every!r} must be "epoch", a number of steps from 1 on, "automatic", '
                f"or None for the strategy's own."
            )

    @property
    def keeps_plan(self) -> bool:
        """Whether it never changes the plan it starts from."""
        return self.solver is None or isinstance(self.solver, KeepPlan)

    @property
    def identity(self) -> tuple[object, ...]:
        """What is the same for equal strategies in two processes, and for no others."""
        return (self.name, self.ratios, self.every, repr(self.model), repr(self.solver))

    def start_shares(self, size: int) -> tuple[float, ...]:
        """Shares to start from, shape `[size]`.

        Raises:
            ValueError: If ratios are given for another number of ranks.
        """
        if self.ratios is None:
            return (1.0,) * size
        if len(self.ratios) != size:
            raise ValueError(
                f"strategy={self.name!r} has {len(self.ratios)} ratios {self.ratios} but the job "
                f"has {size} ranks. Give one ratio per rank."
            )
        return self.ratios


def even() -> Strategy:
    """The same number of samples for every rank, whatever their speed."""
    return Strategy("even")


def observe() -> Strategy:
    """The same number of samples for every rank, as `even`, while all ranks are measured.

    After three minutes rank 0 logs what each strategy would gain, by a replay in the simulator.
    """
    return Strategy("observe", model=LastRound(), solver=KeepPlan(), every="automatic")


def static(ratios: Sequence[float]) -> Strategy:
    """A fixed split in the ratios given, one per rank.

    Raises:
        ValueError: If a ratio is not a positive number.
    """
    try:
        numbers = tuple(float(ratio) for ratio in ratios)
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise ValueError(f"ratios={ratios!r} must be positive numbers, one per rank.")
    return Strategy("static", ratios=numbers)


def dbs() -> Strategy:
    """Once per epoch, in proportion to the speeds of the last epoch.

    References:
        Ye et al., "DBS: Dynamic Batch Size For Distributed Deep Neural Network Training",
        2020, arXiv 2007.11831.
    """
    return Strategy("dbs", model=LastRound(), solver=Proportional(), every="epoch")


def lb_bsp_cpu() -> Strategy:
    """Each step, in proportion to the speeds that a network predicts from the hosts' load.

    For a rank whose last speed has foretold better than the network, that one is used (ours).

    References:
        Chen et al., "Semi-Dynamic Load Balancing" (LB-BSP), arXiv 1806.02508, SoCC 2020.
    """
    return Strategy("lb_bsp_cpu", model=NarxOrLast(), solver=Proportional(), every=1)


def lb_bsp_gpu() -> Strategy:
    """Every few steps, some samples from the slowest rank to the fastest.

    References:
        Chen et al., "Semi-Dynamic Load Balancing" (LB-BSP), arXiv 1806.02508, SoCC 2020.
    """
    return Strategy("lb_bsp_gpu", model=WindowedMean(), solver=PairShift(), every=5)


def omnilearn() -> Strategy:
    """Once per epoch, in proportion to smoothed speeds, and only if some rank changes by 5 %.

    References:
        Tyagi, Sharma, "Taming Resource Heterogeneity In Distributed ML Training With Dynamic
        Batching", ACSOS 2020; "OmniLearn", TPDS 2025.
    """
    return Strategy("omnilearn", model=Ewma(), solver=DeadBand(Proportional()), every="epoch")


def cannikin() -> Strategy:
    """Once per epoch, so that all finish together, hidden communication included.

    References:
        Nie, Maghakian, Liu, "Cannikin: Optimal Adaptive Distributed DNN Training over
        Heterogeneous Clusters", 2024, arXiv 2402.05302.
    """
    return Strategy("cannikin", model=OverlapAffine(), solver=EqualFinish(), every="epoch")


def adaptive() -> Strategy:
    """Ours: learns each rank's curve and pace while training, and how sure that is.

    A posterior with variances for each rank; a plan is changed where that is worth more than it
    costs, decisions as often as they pay. What was tried against it, and lost, is in
    docs/tried.md.

    References:
        The solver of equal finish contains Cannikin's (Nie et al., 2024); the jumps of curves were
        measured by Yao, Liu, Gao, "Load Balanced Batching", 2023.
    """
    solver = DecisionInterval(ValueOfChange())
    return Strategy("adaptive", model=Posterior(), solver=solver, every="automatic")


PRESETS: Mapping[str, Callable[[], Strategy]] = MappingProxyType(
    {
        preset.__name__: preset
        for preset in (
            even,
            observe,
            dbs,
            lb_bsp_cpu,
            lb_bsp_gpu,
            omnilearn,
            cannikin,
            adaptive,
        )
    }
)
"""Strategies that need no arguments, by name."""


def resolve(strategy: str | Strategy, every: Cadence = None) -> Strategy:
    """The strategy that a user named, with the user's cadence if one is given.

    Raises:
        ValueError: If the name is unknown or the cadence impossible.
        TypeError: If it is neither a name nor a Strategy.
    """
    if isinstance(strategy, str):
        if strategy == "static":
            raise ValueError(
                'strategy="static" needs ratios. Use strategy=strategies.static([2, 1, 1]).'
            )
        if strategy not in PRESETS:
            raise ValueError(
                f"strategy={strategy!r} is unknown. Known: {', '.join(sorted(PRESETS))}, and "
                f"strategies.static(ratios)."
            )
        strategy = PRESETS[strategy]()
    if not isinstance(strategy, Strategy):
        name = getattr(strategy, "__name__", "")
        hint = f" Call it: strategies.{name}()." if callable(strategy) and name in PRESETS else ""
        raise TypeError(f"strategy={strategy!r} must be a preset's name or a Strategy.{hint}")
    return strategy if every is None else replace(strategy, every=every)
