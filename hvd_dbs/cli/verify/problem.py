"""What `hvd-dbs verify` trains: samples, global batches, and plans that change at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing import Strategy
from hvd_dbs.balancing.curves import TimeCurves
from hvd_dbs.balancing.plan import Problem
from hvd_dbs.balancing.solvers.solver import Proposal, SolverState
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.sampling import EpochOrder, num_steps

IMAGE_SHAPE = (8, 8, 1)
NUM_CLASSES = 4
_FULL_STEPS = 16

Step = tuple[int, int]
"""Epoch, and step in it."""

Batch = tuple[NDArray[np.int64], NDArray[np.float32] | None]
"""Numbers of the samples of a step, and what each of them counts for; None: all the same."""


@dataclass(frozen=True)
class RandomPlans:
    """A solver that draws another plan in each decision, whatever is measured."""

    seed: int

    def init(self) -> SolverState:
        """Nothing is decided yet."""
        return {"num_decisions": 0}

    def solve(
        self, state: SolverState, problem: Problem, curves: TimeCurves
    ) -> tuple[Proposal, SolverState]:
        """A plan that depends on the seed and the number of the decision alone."""
        random = np.random.default_rng([self.seed, state["num_decisions"]])
        shares = random.dirichlet(np.ones(problem.bounds.size))
        return Proposal(problem.apportion(shares)), {"num_decisions": state["num_decisions"] + 1}


@dataclass(frozen=True)
class VerifyProblem:
    """A training so small that one process repeats it in a second.

    Its last global batch has fewer samples than the job has ranks, so some rank has none in it.

    Attributes:
        size: Ranks of the job.
        seed: Of samples, first weights, order and plans.
        epochs: Epochs to train.
    """

    size: int
    seed: int
    epochs: int = 3

    @property
    def global_batch_size(self) -> int:
        """Samples of all ranks in a full step."""
        return max(16, 4 * self.size)

    @property
    def num_samples(self) -> int:
        """Samples in an epoch."""
        return _FULL_STEPS * self.global_batch_size + max(1, self.size // 2)

    @property
    def num_steps(self) -> int:
        """Steps in an epoch."""
        return num_steps(self.num_samples, self.global_batch_size)

    def samples(self) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """Images, labels, and each sample's number; the same on all ranks."""
        random = np.random.default_rng(self.seed)
        images = random.normal(size=(self.num_samples, *IMAGE_SHAPE)).astype(np.float32)
        labels = random.integers(0, NUM_CLASSES, self.num_samples)
        return images, labels, np.arange(self.num_samples)

    def global_batches(self) -> dict[Step, Batch]:
        """The samples of each step, which no plan changes, in order."""
        starts = range(0, self.num_samples, self.global_batch_size)
        orders = [EpochOrder(self.num_samples, self.seed, epoch) for epoch in range(self.epochs)]
        epochs = [order.indices(0, self.num_samples) for order in orders]
        return {
            (epoch, step): (numbers[start : start + self.global_batch_size], None)
            for epoch, numbers in enumerate(epochs)
            for step, start in enumerate(starts)
        }

    def strategy(self) -> Strategy:
        """Starts uneven and draws another plan after each step."""
        ratios = tuple(1.0 + rank % 3 for rank in range(self.size))
        return Strategy("random", ratios, LastRound(), RandomPlans(self.seed), every=1)


def plain_average(rows: Sequence[Sequence[int]]) -> Batch:
    """A global batch in which each rank counts the same, not each sample: what must not be.

    Args:
        rows: Numbers of each rank's samples.

    Returns:
        A batch whose mean loss is the mean of the ranks' mean losses.
    """
    ranks = [np.array(row, dtype=np.int64) for row in rows if row]
    numbers = np.concatenate(ranks)
    counts = np.concatenate([np.full(row.size, row.size) for row in ranks])
    return numbers, (numbers.size / len(ranks) / counts).astype(np.float32)
