"""The learning rate of a job whose global batch size changes: the ramp, in step with the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_dbs.learning_rate.factor import LearningRateFactor
from hvd_dbs.learning_rate.ramp import RAMP_ITERATIONS, Ramp, RampState


class DynamicLearningRate:
    """A factor on the learning rate that follows the global batch size, once a callback begins it.

    Args:
        global_batch_size: Samples of all ranks in a step.

    Attributes:
        factor: What the optimizer reads, in the graph.
    """

    def __init__(self, global_batch_size: int) -> None:
        self.factor = LearningRateFactor()
        self._global_batch_size = global_batch_size
        self._state: RampState | None = None
        self._started_with: tuple[str, int, bool] | None = None

    @property
    def multiplier(self) -> float:
        """The factor of the last step."""
        if self._state is None:
            return 1.0
        ramp = self._state.ramp
        return ramp.reached(self.factor.num_iterations)

    def start(
        self,
        rule: str = "linear",
        ramp_iterations: int = RAMP_ITERATIONS,
        ramps_down: bool = False,
    ) -> None:
        """From now on the factor follows the global batch size.

        The optimizer's own learning rate belongs to the global batch size at the first start.
        With other arguments than before, a ramp under way is begun anew.

        Raises:
            ValueError: If the rule is unknown, or the number of iterations impossible.
        """
        self._started_with = (rule, ramp_iterations, ramps_down)
        base = self._global_batch_size
        if self._state is not None:
            base = self._state.base_batch_size
            before = self._state.rule, self._state.ramp_iterations, self._state.ramps_down
            if before == self._started_with:
                return
        reached = Ramp(self.multiplier, self.multiplier, ramp_iterations)
        self._set(
            RampState(base, rule, reached, ramp_iterations=ramp_iterations, ramps_down=ramps_down)
        )
        self.follow(self._global_batch_size)

    def follow(self, global_batch_size: int) -> None:
        """The steps from now on have another global batch size."""
        self._global_batch_size = global_batch_size
        if self._state is not None:
            state = self._state.resized(global_batch_size, self.factor.num_iterations)
            if state.ramp != self._state.ramp:
                self._set(state)

    def state_dict(self) -> dict[str, Any] | None:
        """Plain JSON data; None before the first start."""
        if self._state is None:
            return None
        return {**self._state.state_dict(), "num_iterations": self.factor.num_iterations}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continues from a `state_dict`, with a ramp if the global batch size is another now.

        What it was started with before holds on.

        Raises:
            ValueError: If it is no such state; nothing is changed then.
        """
        if state is None:
            self._state = None
            self.factor.set(1.0, 1.0, 0.0)
        else:
            try:
                loaded = RampState.from_state_dict(state)
            except (TypeError, KeyError) as error:
                raise ValueError(f"not the state of a learning-rate ramp: {error!r}") from error
            self._set(loaded)
            self.follow(self._global_batch_size)
        if self._started_with is not None:
            self.start(*self._started_with)

    def _set(self, state: RampState) -> None:
        self._state = state
        ramp = state.ramp
        self.factor.set(ramp.start, ramp.target, ramp.length, state.num_iterations)
