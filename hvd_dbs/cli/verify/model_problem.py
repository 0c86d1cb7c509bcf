"""How `hvd-dbs verify --model` trains: samples, global batches, and plans that change each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Strategy
from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.cli.verify.problem import RandomPlans, Step
from hvd_dbs.sampling import EpochOrder, num_steps

_EPOCHS = 2
_PART_OF_LAST = 8


@dataclass(frozen=True)
class UnevenPlans(RandomPlans):
    """Random plans, of which every third leaves all ranks but one the least that they may have."""

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """A plan that depends on the seed and the number of the decision alone."""
        proposal, new_state = super().solve(state, problem, curves)
        decision = state["num_decisions"]
        if decision % 3 == 2:
            shares = np.zeros(problem.bounds.size)
            shares[(self.seed + decision // 3) % shares.size] = 1.0
            proposal = Proposal(problem.apportion(shares))
        return proposal, new_state


@dataclass(frozen=True)
class ModelProblem:
    """A short training of a model on the samples given, repeated by one process.

    Attributes:
        size: Ranks of the job.
        seed: Of the order and the plans.
        global_batch_size: Samples of all ranks in a full step.
        num_samples: Samples in an epoch.
        epochs: Epochs to train.
    """

    size: int
    seed: int
    global_batch_size: int
    num_samples: int
    epochs: int = _EPOCHS

    @classmethod
    def of(
        cls, size: int, seed: int, global_batch_size: int, steps: int, available: int
    ) -> ModelProblem:
        """The problem of about so many steps, in at least two epochs.

        The last step of an epoch has few samples, of which a rank may have none.

        Args:
            size: Ranks of the job.
            seed: Of the order and the plans.
            global_batch_size: Samples of all ranks in a full step.
            steps: Steps to train.
            available: Samples that there are.

        Raises:
            ValueError: If there are fewer samples than a step has.
        """
        if available < global_batch_size:
            raise ValueError(
                f"the data have {available} samples; expected at least the global batch of "
                f"{global_batch_size}. Give more samples, or a smaller --batch."
            )
        full_steps = max(1, -(-steps // _EPOCHS) - 1)
        wanted = full_steps * global_batch_size + max(1, global_batch_size // _PART_OF_LAST)
        num_samples = min(available, wanted)
        epochs = max(_EPOCHS, -(-steps // num_steps(num_samples, global_batch_size)))
        return cls(size, seed, global_batch_size, num_samples, epochs)

    @property
    def num_steps(self) -> int:
        """Steps in an epoch."""
        return num_steps(self.num_samples, self.global_batch_size)

    def global_batches(self, permutation: int = 0) -> dict[Step, NDArray[np.int64]]:
        """The samples of each step, which no plan changes, in order.

        Args:
            permutation: Other orders within each batch; 0: the order in which ranks read them.
        """
        random = np.random.default_rng([self.seed, permutation])
        batches = {}
        for epoch in range(self.epochs):
            order = EpochOrder(self.num_samples, self.seed, epoch).indices(0, self.num_samples)
            for step in range(self.num_steps):
                start = step * self.global_batch_size
                numbers = order[start : start + self.global_batch_size]
                batches[epoch, step] = random.permutation(numbers) if permutation else numbers
        return batches

    def strategy(self) -> Strategy:
        """Starts uneven and draws another plan after each step."""
        ratios = tuple(1.0 + rank % 3 for rank in range(self.size))
        return Strategy("random", ratios, LastRound(), UnevenPlans(self.seed), every=1)
