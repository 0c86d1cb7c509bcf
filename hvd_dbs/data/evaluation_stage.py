"""Yields one rank's part of a data set that is read once, for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.data.passes import Pass
from hvd_dbs.sampling import num_evaluation_steps, shard


class Evaluation:
    """Whether a balancer's evaluation is under way, and what it reads.

    Callbacks say when an evaluation begins and ends, but do not see its data; the data set
    announces itself when it is read. Whoever reads it in between, or without callbacks, gets the
    same samples, and nobody adds up the ranks' results.

    Attributes:
        stage: What the evaluation under way reads, None where that is no data set of this
            balancer.
        steps_done: Its steps so far.
        is_summed: Whether its metrics have been added up over the ranks.
        on_unwatched: Called where a data set is read and no evaluation has begun.
        is_under_way: Whether one that has begun still goes on: nobody ends it by an exception.
    """

    def __init__(self) -> None:
        self.on_unwatched: Callable[[], None] = lambda: None
        self.is_under_way: Callable[[], bool] = lambda: True
        self.stage: EvaluationStage | None = None
        self.steps_done = 0
        self.is_summed = False
        self._is_open = False

    def begin(self) -> None:
        """An evaluation begins; its data set is not read yet."""
        self.stage, self.steps_done, self.is_summed = None, 0, False
        self._is_open = True

    def end(self) -> None:
        """The evaluation is over."""
        self._is_open = False

    def announce(self, stage: EvaluationStage) -> None:
        """A data set is read from its beginning.

        Raises:
            ValueError: If that is the second pass of an evaluation.
        """
        is_second = self._is_open and self.stage is not None
        if not self._is_open or (is_second and not self.is_under_way()):
            self.on_unwatched()
            return
        if is_second:
            raise ValueError(
                "A second pass over balancer.dataset(..., training=False) began within one "
                "evaluation. Give Keras that data set, once, neither repeated nor with steps."
            )
        self.stage = stage


class EvaluationStage:
    """The first stage of an evaluation data set: which samples, in which step.

    Args:
        num_samples: Samples of the data set.
        rank: Gives whose shard.
        batch_sizes: Gives the plan in force, shape `[size]`; the same on all ranks whenever a
            pass begins.
        evaluation: Learns of each pass.
    """

    goes_straight_on = True

    def __init__(
        self,
        num_samples: int,
        rank: Callable[[], int],
        batch_sizes: Callable[[], tuple[int, ...]],
        evaluation: Evaluation,
    ) -> None:
        self.num_samples = num_samples
        self.num_steps = num_evaluation_steps(num_samples, batch_sizes())
        self.weight = 0
        self._rank = rank
        self._batch_sizes = batch_sizes
        self._evaluation = evaluation

    def announces_to(self, evaluation: Evaluation) -> bool:
        """Whether that evaluation learns of its passes."""
        return self._evaluation is evaluation

    def __call__(self) -> Iterator[NDArray[np.int64]]:
        """One pass by the plan in force: the sample indices of each step, shape `[count]`."""
        return self.begin_pass().steps

    def begin_pass(self) -> Pass:
        """Begins to read this rank's shard, by the plan in force.

        Raises:
            ValueError: If the global batch size has changed and takes more steps.
        """
        self._evaluation.announce(self)
        batch_sizes = self._batch_sizes()
        least = num_evaluation_steps(self.num_samples, batch_sizes)
        if not least <= self.num_steps <= max(1, self.num_samples // len(batch_sizes)):
            raise ValueError(
                f"The global batch size has changed to {sum(batch_sizes)} since this evaluation "
                f"data set was made. Make it anew with balancer.dataset(..., training=False)."
            )
        part = shard(self._rank(), batch_sizes, self.num_samples, self.num_steps)
        self.weight = part.weight
        ends = list(accumulate(part.counts, initial=part.start))
        steps = (np.arange(start, end, dtype=np.int64) for start, end in pairwise(ends))
        return Pass(part.start, steps)
