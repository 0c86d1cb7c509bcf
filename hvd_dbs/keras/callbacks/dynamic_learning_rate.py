"""The learning rate follows the global batch size."""

from __future__ import annotations

from typing import Any

import keras

from hvd_dbs.balancer import Balancer, require_balancer
from hvd_dbs.comm import agreement
from hvd_dbs.job.arguments import whole_number
from hvd_dbs.keras.callback_checks import require_same_fit
from hvd_dbs.keras.model_optimizers import optimizers_of
from hvd_dbs.learning_rate.ramp import RAMP_ITERATIONS, RULES


class DynamicLearningRateCallback(keras.callbacks.Callback):
    """Scales the learning rate with the global batch size, by Dynamic Mini-batch SGD's ramp.

    The optimizer's own learning rate, whoever sets it (a schedule, LearningRateScheduler,
    ReduceLROnPlateau, an assignment), belongs to the global batch size at the time when training
    first begins with this callback. After `balancer.resize`, or where an elastic job changes its
    global batch size, updates use that rate times a multiplier, which goes over to the ratio of
    the batch sizes (rule "linear") or to its square root ("sqrt") step by step:
    `hvd_dbs.learning_rate.ramp.Ramp` has the formula, what it means for momentum is said in
    `docs/changing_batches.md`. `optimizer.learning_rate` stays the optimizer's own rate.

    A rate that grows follows the published ramp. One that falls is set at once, since the ramp made
    the loss worse there in all that was measured; `ramps_down=True` is the paper's rule both ways.

    "linear" is meant for SGD with momentum, "sqrt" for optimizers of the Adam family. The state
    is part of `balancer.state_dict()`. The logs of each epoch get `learning_rate_multiplier`.

    Args:
        balancer: The balancer that the optimizer was given.
        rule: "linear" or "sqrt".
        ramp_iterations: T of the formula: doubling the batch takes 2 T updates; 0 scales at once.
        ramps_down: Whether a rate that falls follows the ramp too, as published.

    Raises:
        TypeError: If `balancer` is not a Balancer, or `ramp_iterations` no whole number.
        ValueError: If the rule is unknown, or `ramp_iterations` negative; on all ranks when
            training begins, if ranks differ in their arguments or the optimizer does not follow
            this balancer.
    """

    def __init__(
        self,
        balancer: Balancer,
        rule: str = "linear",
        ramp_iterations: int = RAMP_ITERATIONS,
        ramps_down: bool = False,
    ) -> None:
        super().__init__()
        if rule not in RULES:
            raise ValueError(f"rule={rule!r} is unknown. Known: {', '.join(sorted(RULES))}.")
        ramp_iterations = whole_number("ramp_iterations", ramp_iterations)
        if ramp_iterations < 0:
            raise ValueError(
                f"ramp_iterations={ramp_iterations} is negative. Give a number of updates; 0 "
                f"scales at once."
            )
        self._balancer = require_balancer(balancer, "DynamicLearningRateCallback")
        self._rule = rule
        self._ramp_iterations = ramp_iterations
        self._ramps_down = ramps_down

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Lets the factor follow the global batch size, on all ranks."""
        collective = self._balancer.collective
        require_same_fit(self, collective)
        agreement.require_equal(
            collective,
            {
                "rule": self._rule,
                "ramp_iterations": repr(self._ramp_iterations),
                "ramps_down": repr(self._ramps_down),
            },
        )
        with agreement.raising_together(collective, ValueError):
            self._check()
        learning_rate = self._balancer.dynamic_learning_rate
        learning_rate.start(self._rule, self._ramp_iterations, self._ramps_down)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the multiplier of the epoch's last step to the logs."""
        if logs is not None:
            logs["learning_rate_multiplier"] = self._balancer.dynamic_learning_rate.multiplier

    def _check(self) -> None:
        optimizer = self.model.optimizer
        if getattr(optimizer, "balancer", None) is not self._balancer:
            raise ValueError(
                "The model's optimizer does not follow this balancer. Compile with "
                "optimizer=hvd.DistributedOptimizer(..., balancer=balancer)."
            )
        followers = [
            one for one in optimizers_of(self.model) if getattr(one, "balancer", None) is not None
        ]
        if len(followers) > 1:
            raise ValueError(
                f"The model has {len(followers)} optimizers with a balancer, and the ramp counts "
                f"the updates of one. Leave out DynamicLearningRateCallback, and set their "
                f"learning rates after a change of the global batch size."
            )
        if not hasattr(optimizer, "learning_rate"):  # Keras's MultiOptimizer.
            raise ValueError(
                f"{type(optimizer).__name__} has no learning rate of its own that could follow the "
                f"global batch size. Use one optimizer for all weights, or leave out "
                f"DynamicLearningRateCallback."
            )
