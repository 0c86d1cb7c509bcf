"""Gradients of a local batch that is computed in micro-batches, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf

from hvd_dbs.balancer import Balancer, require_balancer, session_of
from hvd_dbs.job.session import Session
from hvd_dbs.keras.global_losses import global_losses
from hvd_dbs.keras.local_batch import LocalBatch, Part
from hvd_dbs.tensorflow.global_batch import within
from hvd_dbs.tensorflow.gradient_sums import GradientSums
from hvd_dbs.tensorflow.micro_batch import MicroBatch

LossOf = Callable[[Any], tf.Tensor]
_NO_DENOMINATORS = tf.TensorSpec([None], tf.float64)


class Around(Protocol):
    """What a step does around its micro-batches, in the graph."""

    def begin(self, i: tf.Tensor | int) -> None:
        """Before micro-batch `i`."""

    def end(self) -> None:
        """After the last one."""


def accumulate_gradients(
    loss_of: LossOf, data: Any, variables: Sequence[Any], balancer: Balancer
) -> tuple[tf.Tensor, list[tf.Tensor | tf.IndexedSlices | None]]:
    """Loss and gradients of this rank's local batch, computed in the balancer's micro-batches.

    For a loop of your own; `fit` does it by itself. It stands for the gradient tape and for
    `global_batch`: losses are those of the global batch. What it returns goes to an optimizer with
    the same balancer, which reduces it once. The memory for activations is that of one micro-batch.
    Without `micro_batch_size` the local batch is computed as a whole. Collective where a loss has
    another denominator than the number of samples: the ranks then add up their denominators first.

    Args:
        loss_of: Computes a scalar loss, scaled if the optimizer scales losses, from a part of
            `data`. It makes no variables. AutoGraph does not convert it.
        data: The batch of the step, tensors in any nesting with the same first dimension.
        variables: What to compute gradients of.
        balancer: Knows the samples of the step.

    Returns:
        The loss, this rank's part of the one of the global batch, a scalar; and a gradient for each
        variable, None where there is none.

    Raises:
        TypeError: If `balancer` is not a Balancer, or data are sparse tensors.
        ValueError: If a layer needs numbers of other ranks in the forward pass.

    Example:
        >>> loss, gradients = hvd.accumulate_gradients(  # doctest: +SKIP
        ...     loss_of, (inputs, labels), model.trainable_variables, balancer
        ... )
        >>> optimizer.apply(gradients, model.trainable_variables)  # doctest: +SKIP
    """
    session = session_of(require_balancer(balancer, "accumulate_gradients"))
    return MicroBatchedStep(session, loss_of, variables).run(data)


class _Result(NamedTuple):
    """What a micro-batch, or all of a step, gives.

    Attributes:
        loss: The part of the rank's loss, a scalar.
        is_misfit: Whether a loss has values that belong to no row.
        gradients: Tensors of gradients, as `GradientSums` takes them.
    """

    loss: tf.Tensor
    is_misfit: tf.Tensor
    gradients: Any


class MicroBatchedStep:
    """Computes a step's gradients in micro-batches.

    Args:
        session: Knows the samples of the step, and the size of a micro-batch.
        loss_of: See `accumulate_gradients`.
        variables: Likewise.
        around: What else happens before and after micro-batches; None: nothing.
        jit_compile: Whether XLA compiles forward and backward pass of a micro-batch.
    """

    def __init__(
        self,
        session: Session,
        loss_of: LossOf,
        variables: Sequence[Any],
        *,
        around: Around | None = None,
        jit_compile: bool = False,
    ) -> None:
        self._session, self._loss_of, self._variables = session, loss_of, list(variables)
        self._around, self._jit_compile = around, jit_compile
        self._sums: GradientSums | None = None
        self._num_denominators: int | None = None

    def run(self, data: Any) -> tuple[tf.Tensor, list[Any]]:
        """Loss and gradients; in the graph, or eagerly."""
        samples = self._session.samples
        batch = LocalBatch.of(data, samples, self._session.micro_batch_size)
        run = self._eagerly if tf.executing_eagerly() else self._in_graph
        loss, is_misfit, gradients = run(batch)
        if self._around is not None:
            self._around.end()
        samples.note_misfit(is_misfit)
        return loss, gradients

    def _in_graph(self, batch: LocalBatch) -> _Result:
        # One function of a micro-batch: what it gives is known before the loop, and XLA can
        # compile it, which it cannot do with exchanges between ranks.
        compute = _traced(self._compute, batch, _NO_DENOMINATORS, jit_compile=self._jit_compile)
        denominators = tf.zeros([0], tf.float64)
        if self._num_denominators:
            own = _traced(self._own_denominators, batch)
            _, total = tf.while_loop(
                lambda i, _: i < batch.num_parts,
                lambda i, total: (i + 1, total + own(batch.part(i))),
                (tf.constant(0), tf.zeros([self._num_denominators], tf.float64)),
                parallel_iterations=1,
            )
            denominators = batch.of_all.sum(total)
        sums = self._known_sums()

        def body(i: tf.Tensor, total: _Result) -> tuple[tf.Tensor, _Result]:
            if self._around is not None:
                self._around.begin(i)
            one = compute(batch.part(i), denominators)
            return i + 1, _Result(
                total.loss + one.loss,
                total.is_misfit | one.is_misfit,
                sums.add(total.gradients, one.gradients, i),
            )

        zero = tf.zeros([], compute.structured_outputs.loss.dtype)
        start = _Result(zero, tf.constant(False), sums.zero(batch.num_parts))
        invariants = _Result(tf.TensorShape([]), tf.TensorShape([]), sums.shapes)
        # One micro-batch at a time: more of them would take the memory of more.
        _, result = tf.while_loop(
            lambda i, _: i < batch.num_parts,
            body,
            (tf.constant(0), start),
            shape_invariants=(tf.TensorShape([]), invariants),
            parallel_iterations=1,
        )
        return result._replace(gradients=sums.whole(result.gradients))

    def _eagerly(self, batch: LocalBatch) -> _Result:
        num = int(batch.num_parts)
        denominators = tf.zeros([0], tf.float64)
        if self._num_denominators != 0:
            total = tf.add_n([self._own_denominators(batch.part(i)) for i in range(num)])
            self._num_denominators = int(tf.size(total))
            denominators = batch.of_all.sum(total) if self._num_denominators else total
        self._sums = None
        totals: list[Any] = []
        loss, is_misfit = tf.constant(0.0), tf.constant(False)
        for i in range(num):
            if self._around is not None:
                self._around.begin(i)
            one = self._compute(batch.part(i), denominators)
            sums = self._known_sums()
            totals = sums.add(totals if i else sums.zero(num), one.gradients, i)
            loss = one.loss if i == 0 else loss + one.loss
            is_misfit |= one.is_misfit
        return _Result(loss, is_misfit, self._known_sums().whole(totals))

    def _compute(self, part: Part, denominators: tf.Tensor) -> _Result:
        """Forward and backward pass of a micro-batch."""
        batch = part.micro_batch(denominators)
        with tf.GradientTape() as tape:
            loss = self._loss_within(batch, part)
            loss *= tf.cast(part.share, loss.dtype)
        gradients = tape.gradient(loss, self._variables)
        self._num_denominators = len(batch.own_denominators)
        if self._sums is None:
            self._sums = GradientSums(gradients, self._variables)
        return _Result(loss, batch.is_misfit, self._sums.values(gradients))

    def _own_denominators(self, part: Part) -> tf.Tensor:
        """What the losses of a micro-batch are divided by, shape `[losses]`.

        Of the forward pass the graph keeps what they need, masks most of the time. Nothing that a
        model keeps is changed.
        """
        batch = part.micro_batch(None)
        # Where Keras changes no variables, it asks for values of those that it regularizes.
        values = [(v, v.value) for v in self._variables if isinstance(v, keras.Variable)]
        with keras.StatelessScope(values, collect_losses=True):
            self._loss_within(batch, part)
        return (
            tf.stack(batch.own_denominators)
            if batch.own_denominators
            else tf.zeros([0], tf.float64)
        )

    def _loss_within(self, batch: MicroBatch, part: Part) -> tf.Tensor:
        with global_losses(), within(batch):
            return tf.convert_to_tensor(self._loss_of(part.data))

    def _known_sums(self) -> GradientSums:
        if self._sums is None:
            raise RuntimeError("the gradients of a micro-batch are not known yet.")
        return self._sums


def _traced(function: Any, batch: LocalBatch, *more: tf.TypeSpec, jit_compile: bool = False) -> Any:
    """A function of a part of the local batch, as a graph of its own."""
    made = tf.function(function, autograph=False, jit_compile=jit_compile or None)
    return made.get_concrete_function(batch.part_spec, *more)
