"""From a rank's own gradients to the exact mean over all ranks."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_dbs.balancer import Balancer, require_balancer, session_of
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import stage_of
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.job.session import Session
from hvd_dbs.ops.weighted_allreduce import Tensors, weighted_allreduce
from hvd_dbs.tensorflow.num_ranks import num_ranks
from hvd_dbs.tensorflow.sparse_rows import reduce_rows
from hvd_dbs.watchdog.activity import call_of_fit

_LOGGER = logging.getLogger(__name__)

_CLIPPING = re.compile(r"(?!.*gradient).*\b(clip_by_(?:global_norm|norm|value))")
"""The name of an operation that clips, and is no gradient of one."""


_IS_AVERAGED = "_hvd_dbs_is_averaged"
"""Attribute of a gradient that a tape without a weight has averaged over ranks."""


class GradientReducer:
    """Reduces the gradients of each step; with a balancer, weighted by samples and timed.

    Args:
        balancer: Knows this rank's samples in each step; None gives every rank the weight 1.
        compression: Horovod's compression for the way over the network.
        sparse_as_dense: Whether IndexedSlices are made dense before they are reduced.
        process_set: The ranks that take part; with a balancer all of them.

    Raises:
        TypeError: If `balancer` is not a Balancer, or `compression` is none of Horovod's.
        ValueError: If a balancer is given with a process set other than that of all ranks.
    """

    def __init__(
        self,
        balancer: Balancer | None = None,
        *,
        compression: Any = hvd.Compression.none,
        sparse_as_dense: bool = False,
        process_set: hvd.ProcessSet = hvd.global_process_set,
    ) -> None:
        self.balancer = balancer
        self._session: Session | None = None
        if balancer is not None:
            self._session = session_of(require_balancer(balancer, "An optimizer"))
            if process_set.process_set_id != 0:
                raise ValueError(
                    f"An optimizer was given {process_set} and a balancer, which weighs gradients "
                    f"by the samples of all ranks. Leave out process_set, or the balancer."
                )
        if not hasattr(compression, "decompress"):
            raise TypeError(
                f"compression={compression!r} is none of Horovod's. Give hvd.Compression.fp16, or "
                f"leave it out."
            )
        self._is_checked = False
        self._sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self._compression = compression

    def __call__(self, gradients: Tensors) -> list[tf.Tensor | tf.IndexedSlices | None]:
        """The weighted means of gradients of the step under way; in the graph."""
        if not self._is_checked:
            self.check_data()
            self._check_steps()
            self._check_own(gradients)
            self._warn_of_clipping(gradients)
            self._is_checked = True
        session = self._session
        if session is None:
            return self.reduce(gradients, 1.0, num_ranks(self.process_set))
        clock, fed = session.clock, list[tf.Operation]()
        if not tf.executing_eagerly():
            clock.restart()  # The step that traces is not a typical one.
            if data := _data_of_step(tf.compat.v1.get_default_graph(), gradients):
                fed = clock.fed(data)
        samples = session.samples
        num_samples, work, total = samples.work()
        ready = clock.ready([*_present(gradients), *fed])
        gradients = self._as_sent(gradients)
        own_signals = self._signals(session.loop, gradients)
        with clock.noting_buckets():
            reduced = self.reduce([*gradients, *own_signals], num_samples, total)
        reduced, signals = reduced[: len(gradients)], reduced[len(gradients) :]
        clock.back(ready, _present(reduced), work)
        for mean in signals:
            clock.receive_signal(mean)
        return reduced

    def reduce(
        self, gradients: Tensors, weight: tf.Tensor | float, total_weight: tf.Tensor | float | None
    ) -> list[tf.Tensor | tf.IndexedSlices | None]:
        """The weighted means of gradients; see `weighted_allreduce` and `reduce_rows`."""
        reduce = partial(
            weighted_allreduce,
            weight=weight,
            total_weight=total_weight,
            compression=self._compression,
            process_set=self.process_set,
        )
        return reduce_rows(self._as_sent(gradients), num_ranks(self.process_set), reduce)

    def check_data(self) -> None:
        """Raises ValueError where a `fit` under way has data of a balancer that this has not."""
        call = call_of_fit()
        data = None if call is None else call.f_locals.get("x")
        if self.balancer is None and isinstance(stage_of(data), IndexStage):
            raise ValueError(
                "fit trains on a data set of balancer.dataset, of which ranks have different "
                "numbers of samples, but the optimizer gives all ranks the same weight. Compile "
                "with hvd.DistributedOptimizer(..., balancer=balancer), and give fit "
                "hvd.callbacks.DynamicBatchSizeCallback(balancer)."
            )

    def _check_steps(self) -> None:
        """Raises ValueError where the balancer does not follow the steps of a `fit` under way."""
        if self.balancer is not None:
            require_followed(self.balancer)

    def _check_own(self, gradients: Tensors) -> None:
        """Raises ValueError where a tape has averaged the gradients, each rank's alike."""
        waiting, seen = _present(gradients), set[int]()
        while self.balancer is not None and waiting:
            one = waiting.pop()
            if hasattr(one, _IS_AVERAGED):
                raise ValueError(
                    "The optimizer weighs gradients by a balancer, and was given those that "
                    "DistributedGradientTape has averaged with equal weights; it expects this "
                    "rank's own. Take them from TensorFlow's own tape: leave out the line "
                    "tape = hvd.DistributedGradientTape(tape)."
                )
            if id(one) not in seen and not tf.executing_eagerly():
                seen.add(id(one))
                waiting.extend(one.op.inputs)

    def _warn_of_clipping(self, gradients: Tensors) -> None:
        """A mean of clipped gradients is not a clipped mean. Known in a graph alone."""
        if self.balancer is None or tf.executing_eagerly() or hvd.rank() != 0:
            return
        names = (_CLIPPING.match(gradient.op.name) for gradient in _present(gradients))
        for found in filter(None, names):
            _LOGGER.warning(
                "The training step clips the gradients of its rank (%s), before the optimizer "
                "averages them, so training differs from one process. Let the optimizer clip "
                "their mean: keras.optimizers.SGD(..., global_clipnorm=1.0), clipnorm or "
                "clipvalue.",
                found[1],
            )
            return

    def _as_sent(self, gradients: Tensors) -> Tensors:
        if not self._sparse_as_dense:
            return gradients
        return [
            tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
            for gradient in gradients
        ]

    def _signals(self, loop: TrainingLoop, gradients: Tensors) -> list[tf.Tensor]:
        """What this rank sends the others with its gradients, in one of their buckets.

        Nothing where there is no such bucket, or no rank would heed it.
        """
        dense = [
            gradient
            for gradient in gradients
            if isinstance(gradient, tf.Tensor) and gradient.shape.num_elements() != 0
        ]
        if not (loop.heeds_changes and dense):
            return []
        return [tf.cast(loop.clock.signal(), dense[0].dtype)]


def mark_averaged(gradients: Tensors) -> Tensors:
    """The same gradients, known to be no rank's own."""
    for gradient in _present(gradients):
        setattr(gradient, _IS_AVERAGED, True)
    return gradients


def require_followed(balancer: Balancer) -> None:
    """Checks that the balancer of an optimizer follows the `fit` under way, if there is one.

    Raises:
        ValueError: If it does not.
    """
    if call_of_fit() is not None and not balancer.loop.is_training:
        raise not_followed()


def not_followed() -> ValueError:
    """What a `fit` raises that the balancer of its optimizer does not follow."""
    return ValueError(
        "The optimizer weighs gradients by a balancer that does not follow the steps of this fit. "
        "Give fit hvd.callbacks.DynamicBatchSizeCallback(balancer), on all ranks."
    )


def _data_of_step(graph: tf.Graph, gradients: Tensors) -> list[tf.Tensor]:
    """What a step begins with: what its function is given, or reads from an iterator.

    Args:
        graph: The step's, as far as it is traced.
        gradients: A function that is given these is not the step; then nothing is known.
    """
    inputs = {id(tensor) for tensor in getattr(graph, "inputs", ())}
    if any(id(gradient) in inputs for gradient in _present(gradients)):
        return []
    given = [
        tensor
        for tensor in getattr(graph, "inputs", ())
        if tensor.dtype not in (tf.resource, tf.variant)
    ]
    read = [
        tensor
        for operation in graph.get_operations()
        if operation.type.startswith("IteratorGetNext")
        for tensor in operation.outputs
    ]
    return given + read


def _present(gradients: Tensors) -> list[tf.Tensor]:
    return [
        gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        for gradient in gradients
        if gradient is not None
    ]
