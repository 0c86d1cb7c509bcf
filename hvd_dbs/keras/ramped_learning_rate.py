"""An optimizer whose learning rate is multiplied by a factor while it updates weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from hvd_dbs.keras.internals import momentums_of, num_calls_of

if TYPE_CHECKING:
    from hvd_dbs.learning_rate.factor import LearningRateFactor


class RampedLearningRate:
    """Mixed in before an optimizer class: `learning_rate` is its own times a factor in `apply`.

    Everybody else reads and sets the optimizer's own learning rate: schedules, callbacks, users.
    The factor is read from variables in the graph, once an update.

    The ramp is published for `v = mu * v + g; w -= rate * v`, with v left alone. Keras's SGD and
    RMSprop keep the rate inside of their momentum buffers, `m = mu * m - rate * g; w += m`. So
    that the factor acts as published, m is multiplied by what the factor has changed by since the
    last update: in the iterations of a ramp, never else.
    """

    _hvd_dbs_factor: LearningRateFactor
    _hvd_dbs_multiplier: tf.Tensor | None = None

    @property
    def learning_rate(self) -> Any:
        """The optimizer's own learning rate; while it updates weights, times the factor."""
        own = super().learning_rate  # type: ignore[misc]
        multiplier = self._hvd_dbs_multiplier
        if multiplier is None:
            return own
        rate = keras.ops.convert_to_tensor(own)  # A function may give a Python number.
        return rate * tf.cast(multiplier, rate.dtype)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        super(RampedLearningRate, type(self)).learning_rate.fset(self, value)  # type: ignore[misc]

    def apply(
        self,
        grads: list[tf.Tensor | tf.IndexedSlices | None],
        trainable_variables: list[keras.Variable] | None = None,
    ) -> None:
        """Updates the weights, or gathers gradients where Keras accumulates them."""
        optimizer: Any = self
        if not optimizer.built and trainable_variables is not None:
            with keras.name_scope(optimizer.name, caller=self):
                optimizer.build(list(trainable_variables))
        updates: tf.Tensor | bool = True
        if optimizer.gradient_accumulation_steps:
            # Keras counts calls here; `iterations`, which counts updates, is derived from it.
            num_calls = tf.convert_to_tensor(num_calls_of(optimizer)) + 1
            updates = num_calls % optimizer.gradient_accumulation_steps == 0
        multiplier, before = self._hvd_dbs_factor.read()
        self._scale_momentum(multiplier / before, updates)
        object.__setattr__(self, "_hvd_dbs_multiplier", multiplier)  # Nothing for Keras to track.
        try:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
        finally:
            object.__setattr__(self, "_hvd_dbs_multiplier", None)
        self._hvd_dbs_factor.advance(tf.cast(updates, tf.int64))

    def _scale_momentum(self, scale: tf.Tensor, updates: tf.Tensor | bool) -> None:
        buffers = [buffer.value for buffer in buffers_with_rate(self)]
        if not buffers:
            return

        def multiply() -> None:
            for buffer in buffers:
                buffer.assign(buffer * tf.cast(scale, buffer.dtype))

        tf.cond(tf.logical_and(updates, tf.not_equal(scale, 1.0)), multiply, lambda: None)


def buffers_with_rate(optimizer: Any) -> list[keras.Variable]:
    """The momentum buffers that hold learning rate times gradient; none before there are any."""
    if not optimizer.built:
        buffers = []
    elif isinstance(optimizer, keras.optimizers.SGD):
        buffers = optimizer.momentums
    elif isinstance(optimizer, keras.optimizers.RMSprop):
        buffers = momentums_of(optimizer)
    else:  # Means of gradients, in the Adam family.
        buffers = []
    return [buffer for buffer in buffers if buffer is not None]
