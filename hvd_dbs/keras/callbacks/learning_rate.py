"""Horovod's learning-rate callbacks, on Keras 3."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np

from hvd_dbs.balancer import session_of
from hvd_dbs.keras.model_optimizers import balancer_of
from hvd_dbs.keras.optimizer_options import innermost
from hvd_dbs.keras.ramped_learning_rate import buffers_with_rate

_LOGGER = logging.getLogger(__name__)


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies an initial learning rate by a function of the epoch.

    Args:
        initial_lr: The learning rate that is multiplied.
        multiplier: A function of the epoch (fractional unless `staircase`), or a number that is
            raised to the power of the epochs since `start_epoch`.
        start_epoch: First epoch that is adjusted.
        end_epoch: First epoch that is not adjusted any more; None: no end.
        staircase: Whether to adjust once an epoch instead of before each step.
        momentum_correction: Whether to scale momentum buffers that hold the learning rate, as
            those of SGD and RMSprop do, with it.
        steps_per_epoch: Needed without `staircase` only where Keras does not know it.

    References:
        Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, arXiv
        1706.02677, for warm-up and momentum correction.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr=None; expected the learning rate to multiply.")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._multiplier = multiplier
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Learns the number of steps."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__} does not know the steps of an epoch. "
                    f"Give it steps_per_epoch."
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the learning rate of the step."""
        ended = self.end_epoch is not None and self._epoch >= self.end_epoch
        if self._epoch < self.start_epoch or ended:
            return
        if self.staircase and batch == 0:
            self._set_learning_rate(self._epoch)
        elif not self.staircase:
            self._set_learning_rate(self._epoch + self._part_before(batch))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the learning rate to the logs, as `lr`."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def factor(self, epoch: float) -> float:
        """The multiplier at a point of training."""
        if callable(self._multiplier):
            return float(self._multiplier(epoch))
        return float(self._multiplier ** (epoch - self.start_epoch))

    def _part_before(self, batch: int) -> float:
        """The part of the epoch before a step, also where training continues within the epoch."""
        balancer = balancer_of(self.model)
        position = None if balancer is None else session_of(balancer).position
        if position is not None and position.is_in_epoch:
            return position.part_before(batch)
        return batch / (self.steps_per_epoch or 1)

    def _set_learning_rate(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = float(optimizer.learning_rate), self.initial_lr * self.factor(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old > 0 and not np.isclose(old, new, rtol=1e-12):
            # Keras keeps learning rate times gradient in these buffers. Scaling them once is what
            # scaling the momentum coefficient for one step would do.
            for buffer in (b for one in innermost(optimizer) for b in buffers_with_rate(one)):
                buffer.assign(buffer * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size` to `initial_lr` over some epochs.

    Args:
        initial_lr: The learning rate to arrive at.
        warmup_epochs: Epochs until then.
        momentum_correction: Whether to scale the momentum buffer with the learning rate.
        steps_per_epoch: Needed only where Keras does not know it.
        verbose: Whether rank 0 says when it is over.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # One step on, so that the last step of the warm-up has the full learning rate.
            epoch += 1 / (self.steps_per_epoch or 1)
            return 1.0 / hvd.size() * (epoch * (hvd.size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Says when the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch == epoch + 1 and self.verbose and hvd.rank() == 0:
            _LOGGER.info(
                "epoch %d: warm-up finished at learning rate %g",
                epoch + 1,
                float(self.model.optimizer.learning_rate),
            )
