"""What makes a Keras 3 optimizer reduce gradients over all ranks before it applies them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_dbs.keras.internals import trained_by
from hvd_dbs.keras.local_variables import variable_reference
from hvd_dbs.keras.mixed_in import mix_in
from hvd_dbs.keras.ramped_learning_rate import RampedLearningRate
from hvd_dbs.ops.autograph import do_not_convert
from hvd_dbs.tensorflow.gradient_reducer import GradientReducer
from hvd_dbs.tensorflow.num_ranks import num_ranks

if TYPE_CHECKING:
    from hvd_dbs.balancer import Balancer

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None

_IS_INNER = "_hvd_dbs_is_inner"
"""Attribute of an optimizer inside a distributed LossScaleOptimizer."""


_is_alone: ContextVar[bool] = ContextVar("hvd_dbs_is_alone", default=False)


@contextmanager
def without_other_ranks() -> Iterator[None]:
    """Within it, optimizers apply this rank's own gradients, in the memory of reduced ones."""
    token = _is_alone.set(True)
    try:
        yield
    finally:
        _is_alone.reset(token)


@dataclass
class Reduction:
    """From a rank's own gradients to those that its optimizer applies.

    Attributes:
        reducer: Gives the mean over the ranks that take part; others apply their own gradients.
        sums_ranks: Whether the sum over ranks is applied instead of the mean.
        passes_summed: Passes whose gradients Keras averages where their sum is meant; 1: none.
        scale_local_gradients: Whether gradients of local variables are divided by the ranks.
        local: References of variables whose gradients stay each rank's own.
        is_used: Whether gradients have been reduced.
    """

    reducer: GradientReducer
    sums_ranks: bool = False
    passes_summed: int = 1
    scale_local_gradients: bool = True
    local: set[Any] = field(default_factory=set)
    is_used: bool = False

    def __call__(self, gradients: list[Gradient], variables: list[Any]) -> list[Gradient]:
        """The gradients to apply, in the graph of the step."""
        if _is_alone.get():
            return [_copied(gradient) for gradient in gradients]
        self.is_used = True
        are_local = [bool(self.local) and variable_reference(v) in self.local for v in variables]
        pairs = list(zip(gradients, are_local, strict=True))
        shared = [gradient for gradient, is_local in pairs if not is_local]
        if self._process_set.included():
            shared = self.reducer(shared)
            if self.sums_ranks:
                shared = [_scaled(gradient, self._size()) for gradient in shared]
        reduced = iter(shared)
        factor = 1 / self._size() if self.scale_local_gradients else 1
        result = [_scaled(g, factor) if is_local else next(reduced) for g, is_local in pairs]
        if self.passes_summed == 1:
            return result
        return [
            # Float8 layers pass on values as gradients, to be assigned as they are.
            gradient
            if getattr(variable, "overwrite_with_gradient", False)
            else _scaled(gradient, self.passes_summed)
            for gradient, variable in zip(result, variables, strict=True)
        ]

    def require_local_variables_possible(self, optimizer: Any) -> None:
        """Raises ValueError where gradients of some variables cannot stay a rank's own."""
        if self.balancer is not None:
            raise ValueError(
                "Local variables and a balancer do not go together: a rank would train its own "
                "variables with fewer samples the slower it is. Leave out balancer=, or share all "
                "variables."
            )
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "Local variables and loss scaling do not go together: a rank whose own gradients "
                "overflow would skip the step alone. Use the policy mixed_bfloat16 or float32."
            )
        if self.is_used:
            raise ValueError(
                "The optimizer has reduced gradients already, and its step may be traced. Register "
                "local variables before the first step."
            )

    @property
    def balancer(self) -> Balancer | None:
        """The balancer that the gradients are weighted by."""
        return self.reducer.balancer

    def add_local(self, variable: Any) -> None:
        """Gradients of a variable stay this rank's own."""
        self.local.add(variable_reference(variable))

    @property
    def _process_set(self) -> hvd.ProcessSet:
        return self.reducer.process_set

    def _size(self) -> Any:
        """How many ranks take part, a number or a float32 scalar."""
        size = num_ranks(self._process_set)
        return tf.cast(size, tf.float32) if isinstance(size, tf.Tensor) else size


def _copied(gradient: Gradient) -> Gradient:
    """What a bucket's way back makes of a gradient, without the way."""
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.reshape(tf.concat([tf.reshape(gradient, [-1]), [0]], 0)[:-1], tf.shape(gradient))


def _scaled(
    gradient: tf.Tensor | tf.IndexedSlices | None, factor: Any
) -> tf.Tensor | tf.IndexedSlices | None:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


class ReducingOptimizer:
    """Mixed in before an optimizer class: reduces gradients, then applies them."""

    _hvd_dbs_reduction: Reduction

    @property
    def balancer(self) -> Balancer | None:
        """The balancer that the gradients are weighted by."""
        return self._hvd_dbs_reduction.balancer

    @property
    def variables(self) -> CallableList:
        """The optimizer's variables; calling the list gives it too, as in Horovod."""
        return CallableList(super().variables)  # type: ignore[misc]

    def register_local_var(self, var: Any) -> None:
        """Gradients of a variable stay this rank's own: each rank has its own values of it.

        They are divided by the number of ranks unless `scale_local_gradients=False`: what a rank
        contributes to a mean. `BroadcastGlobalVariablesCallback` needs its `local_variables`.

        Args:
            var: A variable of Keras or TensorFlow.

        Raises:
            TypeError: If it is none.
            ValueError: If the optimizer has a balancer, scales the loss or has been used already.
        """
        self._hvd_dbs_reduction.require_local_variables_possible(self)
        self._hvd_dbs_reduction.add_local(var)

    @do_not_convert
    def apply(
        self,
        grads: list[Gradient],
        trainable_variables: list[keras.Variable] | None = None,
    ) -> None:
        """Applies the mean over all ranks of these local gradients."""
        if _inside_condition():
            raise ValueError(
                "The optimizer is asked to reduce gradients under a condition that can differ "
                "between ranks, and the ranks would deadlock. With loss scaling, wrap it the other "
                "way round: "
                "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))."
            )
        optimizer: Any = self
        variables = trainable_variables or trained_by(optimizer)
        if len(grads) != len(variables):
            raise ValueError(
                f"apply was given {len(grads)} gradients for {len(variables)} variables. Give one "
                f"for each: optimizer.apply(gradients, model.trainable_variables)."
            )
        reduced = self._hvd_dbs_reduction(list(grads), list(variables))
        super().apply(reduced, trainable_variables)  # type: ignore[misc]


class CallableList(list[Any]):
    """Serves `optimizer.variables` and `optimizer.variables()`."""

    def __call__(self) -> CallableList:
        """The list."""
        return self


def make_reducing(optimizer: Any, reduction: Reduction) -> Any:
    """Makes this very optimizer reduce, and follow the balancer's learning-rate factor.

    Not a new one of its configuration: that holds neither what a method has set
    (`exclude_from_weight_decay`) nor arguments and attributes that a subclass does not name in
    `get_config`, and no optimizer can be made of it where it holds a function or an unregistered
    class. Nor a copy: `copy.copy` and `copy.deepcopy` of a Keras optimizer go by the configuration
    too.
    """
    balancer = reduction.reducer.balancer
    inner = getattr(optimizer, "inner_optimizer", None)  # Of a LossScaleOptimizer.
    if inner is not None:
        object.__setattr__(inner, _IS_INNER, True)
    if balancer is not None:
        ramped = optimizer if inner is None else inner
        mix_in(RampedLearningRate, ramped)
        factor = balancer.dynamic_learning_rate.factor
        object.__setattr__(ramped, "_hvd_dbs_factor", factor)
    mix_in(ReducingOptimizer, optimizer)
    object.__setattr__(optimizer, "_hvd_dbs_reduction", reduction)  # Nothing for Keras to track.
    return optimizer


def _inside_condition() -> bool:
    """Whether what is traced now is a branch of a condition, not a function called in one.

    With several steps in a call, Keras calls its step where there are data, as all ranks have.
    """
    if tf.executing_eagerly():
        return False
    return type(tf.compat.v1.get_default_graph()).__name__ == "CondBranchFuncGraph"


def check_data(optimizer: Any) -> None:
    """Raises ValueError where a `fit` under way has data of a balancer that this has not.

    Its own step looks at that where it is traced, which a later `fit` need not do.
    """
    if isinstance(optimizer, ReducingOptimizer):
        optimizer._hvd_dbs_reduction.reducer.check_data()


def is_reducing(optimizer: Any) -> bool:
    """Whether this optimizer, or one that it wraps, reduces gradients or is wrapped by such."""
    return any(
        isinstance(one, ReducingOptimizer) or hasattr(one, _IS_INNER)
        for one in (optimizer, getattr(optimizer, "inner_optimizer", None))
    )
