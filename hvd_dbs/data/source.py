"""What `balancer.dataset` reads from."""

from __future__ import annotations

import abc

import tensorflow as tf

from hvd_dbs.data.fingerprint import Fingerprint
from hvd_dbs.data.passes import Stage, indices


class Source(abc.ABC):
    """Samples that can be read by number, in any order.

    A source is made without touching files, so that what goes wrong there goes wrong inside of
    `balancer.dataset`, where all ranks learn of it.

    Attributes:
        block_size: Consecutive samples that shuffling leaves together; 1: it moves each alone.
        has_own_order: Whether samples can only be read in their order, from the first one on.
        is_endless: Whether epochs follow each other in one pass.
    """

    block_size: int = 1
    has_own_order: bool = False
    is_endless: bool = False

    @property
    @abc.abstractmethod
    def num_samples(self) -> int:
        """Number of samples, at least 1. The first use may read files.

        Raises:
            ValueError: If there is no sample, or the samples cannot be read by number.
        """

    @property
    def identity(self) -> str:
        """Text that is equal on all ranks if they read the same samples; checked at start."""
        return ""

    @property
    def fingerprint(self) -> Fingerprint:
        """Some values that tell whether ranks were given other samples; nothing: nobody asks."""
        return Fingerprint()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the samples; said once, by rank 0."""
        return ()

    @abc.abstractmethod
    def batches(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        """Reads local batches; called once `num_samples` is known.

        Args:
            indices: The numbers of the samples of each local batch, int64 of shape `[count]`,
                at least one, with a count that changes between elements.

        Returns:
            One local batch for each element, in the same order, the samples in the order given,
            of dynamic first dimension `count`. Parallel calls are welcome, one a core; what is
            read ahead is bounded by the indices, which come when their plan is known.
        """

    def read(self, stage: Stage) -> tf.data.Dataset:
        """Reads what a stage says, one local batch a step."""
        return self.batches(indices(stage))
