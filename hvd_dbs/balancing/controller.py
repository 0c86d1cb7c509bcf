"""Turns one round of measurements into one decision: the same in a job and in a simulation."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.bounds import Bounds
from hvd_dbs.balancing.change_signal import ExpectedSteps
from hvd_dbs.balancing.doubt import doubt
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.plan import DECISION_SECONDS, FIRST_ROUND_STEPS, Decision, Plan, Problem
from hvd_dbs.balancing.solvers.solver import SolverState, entries_of
from hvd_dbs.balancing.strategies import Strategy
from hvd_dbs.balancing.time_models.time_model import ModelState, PoolingModel, StepModel, plain_rows
from hvd_dbs.balancing.unhidden_communication import UnhiddenCommunication

_LOGGER = logging.getLogger(__name__)


class Controller:
    """The plan in force, and how the next one is found.

    A round has three calls. Each rank folds what it measured into its own time model and gets a
    record of fixed size (`observe`). Rank 0, given the records of all ranks, decides (`decide`).
    The others learn from them too (`pool`), and take over its plan (`adopt`). `steps_to_next` tells
    a driver after how many steps the round ends; None: at the end of the epoch, or never.
    `expected_steps` tells it what the steps of the ranks kept here should take; None: unknown. No
    clock, no randomness, no communication here.

    A driver that knows what a decision costs all ranks says so in `decision_seconds`. One that
    measures what a whole step takes says so by `note_step`: what a decision predicts can then be
    compared with whole steps.

    Args:
        strategy: Model, solver, guards and cadence.
        global_batch_size: Samples of all ranks in a step.
        bounds: Allowed local batch sizes; their number is the number of ranks.
        num_rows: Ranks whose time models are kept here: 1 in a running job, all in a simulation.

    Raises:
        ValueError: If no plan within the bounds sums to `global_batch_size`.

    Example:
        >>> from hvd_dbs.balancing import strategies
        >>> controller = Controller(strategies.dbs(), 96, Bounds.of(2, minimum=1), num_rows=2)
        >>> records = controller.observe(Measurement.of([48, 48], [0.1, 0.2]))
        >>> controller.decide(records).plan.batch_sizes
        (64, 32)
    """

    def __init__(
        self, strategy: Strategy, global_batch_size: int, bounds: Bounds, num_rows: int = 1
    ) -> None:
        self.strategy = strategy
        self.global_batch_size = global_batch_size
        self.bounds = bounds
        self.plan = Plan.proportional(global_batch_size, strategy.start_shares(bounds.size), bounds)
        self._model_state: ModelState = strategy.model.init(num_rows) if strategy.model else {}
        self._model_failed = False
        self.expected_steps: ExpectedSteps | None = None
        # Looking a protocol up takes as long as a part of a decision.
        self._pooling_model = strategy.model if isinstance(strategy.model, PoolingModel) else None
        self.decision_seconds = DECISION_SECONDS
        self._communication = UnhiddenCommunication()
        self._step: tuple[float, NDArray[np.float64]] | None = None
        self._solver_state: SolverState = {}
        self._begin_anew()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.bounds.size

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Local batch sizes of the plan in force, by rank."""
        return self.plan.batch_sizes

    def observe(self, measurement: Measurement) -> NDArray[np.float64]:
        """Folds a round into the time models of the ranks kept here.

        A model that fails is reported once and says "unknown" in that round: balancing never
        ends the training.

        Returns:
            Records for rank 0, shape `[num_rows, record_size]`; width 0 if nothing is decided.
        """
        model = self.strategy.model
        num_rows = len(measurement.batch_sizes)
        if model is None:
            return np.zeros((num_rows, 0))
        try:
            with np.errstate(all="ignore"):
                self._model_state = model.update(self._model_state, measurement)
                if isinstance(model, StepModel):
                    self.expected_steps = model.expected_steps(self._model_state)
                else:
                    self.expected_steps = ExpectedSteps.by_last_round(measurement)
                return model.record(self._model_state)
        except Exception as error:  # Whatever a model meets, the plan is kept.
            self._note_failure(error, "the plan is kept meanwhile")
            return np.full((num_rows, model.record_size), np.nan)

    def pool(self, records: NDArray[np.float64]) -> None:
        """What the records of all ranks, shape `[size, record_size]`, say of the ranks kept here.

        For all ranks but rank 0, whose `decide` does it. A model that fails learns nothing of them.
        """
        if self._pooling_model is None:
            return
        try:
            self._model_state = self._pooling_model.pool(self._model_state, records)
        except Exception as error:
            self._note_failure(error, "ranks learn nothing of each other")

    def note_step(self, seconds: float, batch_sizes: NDArray[np.float64]) -> None:
        """What a step of the round took as a whole. For rank 0, before `decide`.

        What it took beyond what the time curves then say, which know of hidden communication or do
        not, is noted as communication.

        Args:
            seconds: NaN: unknown.
            batch_sizes: Local batch sizes of the step, shape `[size]`.
        """
        self._step = seconds, batch_sizes

    def note_communication(self, seconds: float) -> None:
        """What a step of the last round took beyond what the time curves say. For rank 0.

        It is the same for all ranks, whatever the plan is. Predicted seconds include it.

        Args:
            seconds: NaN: unknown.
        """
        self._communication.note(seconds)

    def decide(self, records: NDArray[np.float64]) -> Decision:
        """Decides from the records of all ranks, shape `[size, record_size]`. For rank 0.

        Whatever is wrong with the records or the solver, the answer is a valid plan.
        """
        decision = self._decide(records)
        self.plan = decision.plan
        self.steps_to_next = self._steps_from(decision.steps_to_next)
        return replace(decision, steps_to_next=self.steps_to_next)

    def adopt(self, plan: Plan, steps_to_next: int | None = None) -> None:
        """Takes over the plan that rank 0 decided on, and when it wants to decide again.

        Raises:
            ValueError: If its number of ranks or its sum is not this job's, or it is not within
                the bounds.
        """
        if (plan.size, plan.global_batch_size) != (self.size, self.global_batch_size):
            raise ValueError(
                f"plan {plan} is for {plan.size} ranks and {plan.global_batch_size} samples; "
                f"expected {self.size} ranks and {self.global_batch_size} samples."
            )
        if not self.bounds.allow(plan.samples):
            raise ValueError(f"plan {plan} is not within the bounds {self.bounds}.")
        self.plan = plan
        self.steps_to_next = self._steps_from(steps_to_next)

    def change_ranks(self, global_batch_size: int, bounds: Bounds) -> None:
        """Other ranks from now on; the plan is the strategy's first one, the solver begins anew.

        What the time models kept here know stays. In a job `Resumption.rejoin` then makes a plan.

        Raises:
            ValueError: If no plan within the bounds has that sum, or the strategy is made for
                another number of ranks; nothing is changed then.
        """
        shares = self.strategy.start_shares(bounds.size)
        self.plan = Plan.proportional(global_batch_size, shares, bounds)
        self.global_batch_size, self.bounds = global_batch_size, bounds
        self._communication.forget()
        self._begin_anew()

    def resize(self, global_batch_size: int) -> None:
        """Changes the sum of all plans; the ranks keep their shares, as near as bounds allow.

        What the time models know stays: it is by batch size. The solver begins anew.

        Raises:
            ValueError: If no plan within the bounds has that sum; nothing is changed then.
        """
        self.plan = Plan.proportional(global_batch_size, self.plan.samples, self.bounds)
        self.global_batch_size = global_batch_size
        self._begin_anew()

    def state_dict(self) -> dict[str, Any]:
        """Plan, models' and solver's memory as plain JSON data."""
        return {
            "strategy": self.strategy.name,
            "batch_sizes": list(self.plan.batch_sizes),
            "steps_to_next": self.steps_to_next,
            "model": {name: plain_rows(rows) for name, rows in self._model_state.items()},
            "solver": self._solver_state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a `state_dict`; nothing is changed unless all of it fits.

        Raises:
            ValueError: If it is another strategy's, or of another number of ranks or samples, or
                its plan is not within the bounds.
        """
        if state.get("strategy") != self.strategy.name:
            raise ValueError(
                f"state of strategy {state.get('strategy')!r} given to strategy "
                f"{self.strategy.name!r}. Make the Balancer with the strategy it was saved with."
            )
        model_state = {
            name: np.asarray(rows, dtype=np.float64) for name, rows in state["model"].items()
        }
        expected = {name: rows.shape for name, rows in self._model_state.items()}
        given = {name: rows.shape for name, rows in model_state.items()}
        if given != expected:
            raise ValueError(f"state has model arrays of shapes {given}; expected {expected}.")
        solver_state, solver_entries = dict(state["solver"]), entries_of(self._solver_state)
        if entries_of(solver_state) != solver_entries:
            raise ValueError(
                f"state has solver entries {entries_of(solver_state)}; expected {solver_entries}."
            )
        plan = Plan(tuple(int(samples) for samples in state["batch_sizes"]))
        self.adopt(plan, state.get("steps_to_next"))
        self._model_state, self._solver_state = model_state, solver_state

    def _decide(self, records: NDArray[np.float64]) -> Decision:
        model, solver = self.strategy.model, self.strategy.solver
        if model is None or solver is None:
            return self._keep("this strategy never changes its plan")
        try:
            with np.errstate(all="ignore"):
                records = np.asfortranarray(records)  # All that is asked of them is by column.
                self.pool(records)
                curves = model.curves(records)
                now = curves.seconds(self.plan.samples)
                if reason := doubt(curves, now, self.plan):
                    return self._keep(reason, warning=True)
                if self._step is not None:
                    (seconds, batch_sizes), self._step = self._step, None
                    self.note_communication(seconds - float(np.max(curves.seconds(batch_sizes))))
                problem = Problem(
                    self.global_batch_size, self.bounds, self.plan, self.decision_seconds
                )
                proposal, solver_state = solver.solve(self._solver_state, problem, curves)
                plan = problem.in_multiples(proposal.plan, curves)
        except Exception as error:  # Whatever a solver meets, the plan is kept.
            return self._keep(f"the solver failed: {error!r}", warning=True)
        self._check(plan)
        self._solver_state = solver_state
        changed = plan != self.plan
        # The same of each plan, and part of each step that was measured.
        communication = self._communication.seconds
        before = after = float(np.max(now)) + communication
        reason = f"kept: {proposal.reason or f'step {1000 * before:.1f} ms'}"
        if changed:
            after = float(np.max(curves.seconds(plan.samples))) + communication
            reason = (
                f"step {1000 * before:.1f} ms -> {1000 * after:.1f} ms predicted; "
                f"rank {int(np.argmax(now))} was slowest"
                f"{proposal.reason and f'; {proposal.reason}'}"
            )
        predicted, steps = (before, after), proposal.steps_to_next
        return Decision(plan, changed, reason, predicted, steps_to_next=steps)

    def _begin_anew(self) -> None:
        solver = self.strategy.solver
        self._solver_state = {} if solver is None else solver.init()
        self.steps_to_next = self._steps_from(None)

    def _steps_from(self, proposed: int | None) -> int | None:
        """Steps until the next decision; None where an epoch's end, or nothing, brings it."""
        if self.strategy.every == "automatic":
            return FIRST_ROUND_STEPS if proposed is None else proposed
        return self.strategy.every if isinstance(self.strategy.every, int) else None

    def _note_failure(self, error: Exception, consequence: str) -> None:
        if not self._model_failed:
            _LOGGER.warning("time model failed (%r); %s", error, consequence)
        self._model_failed = True

    def _keep(self, reason: str, warning: bool = False) -> Decision:
        return Decision(self.plan, False, f"kept: {reason}", warning=warning)

    def _check(self, plan: Plan) -> None:
        """Invariant 1; a solver that breaks it is a defect and ends the job."""
        if plan.global_batch_size != self.global_batch_size or not self.bounds.allow(plan.samples):
            raise RuntimeError(
                f"strategy {self.strategy.name!r} proposed {plan} outside of its bounds "
                f"{self.bounds} or with another sum than {self.global_batch_size}. "
                f"This is a defect of the solver."
            )
