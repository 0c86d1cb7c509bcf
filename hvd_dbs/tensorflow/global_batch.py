"""The global batch of a step: means, sums and losses over the samples of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_dbs.ops.autograph import do_not_convert
from hvd_dbs.tensorflow.dependence import depends_on_samples

_NAME = "hvd_dbs.global_batch"
_SCOPE = "hvd_dbs/"  # Ends with a slash: inside of no other scope.


@dataclass
class StepLosses:
    """What is known of the losses of a step.

    Attributes:
        known: Losses that are means or sums over the global batch.
        opaque: Losses that are not known to be: what they are, in words.
    """

    known: list[tf.Tensor] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)

    def add(self, loss: tf.Tensor) -> tf.Tensor:
        """Notes a loss of the global batch."""
        self.known.append(loss)
        return loss

    def check(self, loss: tf.Tensor, what: str) -> None:
        """Notes a loss that depends on samples, except through losses of the global batch."""
        is_known = any(loss is one for one in self.known)  # Which no graph shows eagerly.
        if not is_known and depends_on_samples(loss, self.known) is not False:
            self.opaque.append(what)


class GlobalBatch:
    """The samples of all ranks in one step, while the step is traced or runs eagerly.

    Gradients are averaged over ranks, weighted by samples: with weights `w_i` and their sum W, the
    optimizer applies `sum_i w_i g_i / W`. A loss term is `N / D`, where numerator and denominator
    are sums over the elements of all ranks. A rank's loss must therefore be
    `N_i / D * (W / w_i)`: then the applied gradient is that of `sum_i N_i / D`. Where the
    denominator is the number of samples, that is the rank's own mean, and nothing is exchanged.

    Args:
        weight: This rank's samples that count, a scalar; 0 where it has padding samples only.
        total: Samples of all ranks, a scalar.
        note_misfit: Where weights are numbers of samples: notes whether a loss has values that
            belong to none. None: gradients of all ranks count the same, however many samples they
            have.

    Attributes:
        weight: Float64 scalar.
        total: Float64 scalar.
        losses: What is known of the losses of this step.
    """

    def __init__(
        self,
        weight: tf.Tensor | float,
        total: tf.Tensor | float,
        *,
        note_misfit: Callable[[tf.Tensor], None] | None = None,
    ) -> None:
        with tf.device("CPU"):
            self.weight = tf.cast(weight, tf.float64)
            self.total = tf.cast(total, tf.float64)
        self._note_misfit = note_misfit
        self.losses = StepLosses()
        self._num_exchanges = 0

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum of a tensor over all ranks, without those that have padding samples only.

        Collective, and differentiable: the gradient is that of the loss of the global batch.

        Args:
            tensor: Of the same shape and floating-point type on all ranks.
        """
        name = self._next_name()

        @tf.custom_gradient
        def summed(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                # Every rank's loss depends on this rank's values. Its own gradient counts for
                # weight / total afterwards, theirs for what their weights are.
                weighted = self._counted(upstream * self._cast(self.weight, upstream))
                of_all = self._allreduce(weighted, f"{name}.gradient")
                return tf.math.divide_no_nan(of_all, self._cast(self.weight, upstream))

            return self._allreduce(self._counted(x), name), gradient

        return summed(tensor)

    def loss_factor(self, denominator: tf.Tensor) -> tf.Tensor:
        """What a rank's mean loss is multiplied by, to be its part of the mean over all ranks.

        Collective.

        Args:
            denominator: What the rank's own mean is divided by: valid elements, or a sum of
                weights; a scalar.

        Returns:
            `D_i / D * (W / w_i)`, a float64 scalar; 0 where this rank has no sample.
        """
        with tf.device("CPU"):
            own = self._counted(tf.cast(denominator, tf.float64))
            of_all = self._allreduce(own, self._next_name())
            return tf.math.divide_no_nan(own * self.total, of_all * self.weight)

    @property
    def sum_factor(self) -> tf.Tensor:
        """What a rank's summed loss is multiplied by: `W / w_i`, a float64 scalar."""
        with tf.device("CPU"):
            return tf.math.divide_no_nan(self.total, self.weight)

    @property
    def counts_samples(self) -> bool:
        """Whether weights are numbers of samples."""
        return self._note_misfit is not None

    def check_rows(self, num_rows: tf.Tensor) -> None:
        """Notes whether values, so many, are not as many for each sample."""
        if self._note_misfit is not None:
            with tf.device("CPU"):
                samples = tf.cast(self.weight, tf.int64)
                self._note_misfit(num_rows % tf.maximum(samples, 1) != 0)

    def _counted(self, tensor: tf.Tensor) -> tf.Tensor:
        """Zeros on a rank without samples, also where padding samples have made NaN."""
        return tf.where(self.weight > 0, tensor, tf.zeros_like(tensor))

    def _allreduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        # Horovod matches tensors by the names of operations. In the scope of a layer that would be
        # the layer's, which Keras numbers in each process.
        with tf.name_scope(_SCOPE):
            return hvd.allreduce(tensor, op=hvd.Sum, name=name)

    def _next_name(self) -> str:
        """Names are by order, so that ranks agree on them however many models each has made."""
        self._num_exchanges += 1
        return f"{_NAME}.{self._num_exchanges}"

    @staticmethod
    def _cast(scalar: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        return tf.cast(scalar, like.dtype)


_CURRENT: ContextVar[GlobalBatch | None] = ContextVar("hvd_dbs_global_batch", default=None)


def current_global_batch() -> GlobalBatch | None:
    """The global batch of the training step that the caller is in; None outside of one."""
    return _CURRENT.get()


@contextmanager
def within(batch: GlobalBatch) -> Iterator[None]:
    """Makes a global batch the one of the step that is traced, or runs, inside."""
    token = _CURRENT.set(batch)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@do_not_convert
def global_mean(values: Any, weights: Any = None) -> tf.Tensor:
    """The mean of values over all ranks, as a loss of this rank that the optimizer can average.

    In a training step (`fit`, or `global_batch`) the gradients that are applied are those of
    `sum(values * weights) / sum(weights)` with sums over the elements of all ranks, and so is the
    loss that is reported. Elsewhere, as in an evaluation, it is the plain weighted mean.
    Collective in a training step.

    Args:
        values: Losses of any shape, such as one for each token, shape `[batch, time]`.
        weights: What each value counts for, such as a mask; broadcasts to `values`. None: 1.

    Returns:
        A scalar.

    Example:
        >>> global_mean([1.0, 3.0, 9.0], weights=[1.0, 1.0, 0.0]).numpy().item()
        2.0
    """
    values = tf.convert_to_tensor(values)
    counts = tf.ones_like(values)
    if weights is not None:
        counts *= tf.cast(weights, values.dtype)
    denominator = tf.reduce_sum(counts)
    # What does not count may be NaN.
    mean = tf.math.divide_no_nan(
        tf.reduce_sum(tf.math.multiply_no_nan(values, counts)), denominator
    )
    batch = current_global_batch()
    if batch is None:
        return mean
    return batch.losses.add(mean * tf.cast(batch.loss_factor(denominator), mean.dtype))


@do_not_convert
def global_sum(values: Any) -> tf.Tensor:
    """The sum of values over all ranks, as a loss of this rank that the optimizer can average.

    As `global_mean`, for a loss that is a sum over samples; nothing is exchanged for it.

    Args:
        values: Losses of any shape.

    Returns:
        A scalar.

    Example:
        >>> global_sum([1.0, 3.0]).numpy().item()
        4.0
    """
    total = tf.reduce_sum(tf.convert_to_tensor(values))
    batch = current_global_batch()
    if batch is None:
        return total
    return batch.losses.add(total * tf.cast(batch.sum_factor, total.dtype))
