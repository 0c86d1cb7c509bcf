"""A change of the global batch size, which waits for the end of an open epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable

from hvd_dbs.balancing import Controller
from hvd_dbs.comm.collective import Collective
from hvd_dbs.job.position import TrainingPosition
from hvd_dbs.sampling import num_steps

_LOGGER = logging.getLogger(__name__)


class Resizing:
    """Keeps the global batch size that is wanted until it can take effect.

    Args:
        collective: The job.
        controller: This rank's controller.
        position: Where training stands.
        on_resize: Called with each new global batch size; None: nobody follows it.
    """

    def __init__(
        self,
        collective: Collective,
        controller: Controller,
        position: TrainingPosition,
        on_resize: Callable[[int], None] | None = None,
    ) -> None:
        self._collective, self._controller, self._position = collective, controller, position
        self._on_resize = on_resize
        self._current = controller.global_batch_size
        self._wanted: int | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a change waits."""
        return self._wanted is not None

    def check(self, global_batch_size: int, *, is_training: bool) -> None:
        """Raises ValueError if there can be no such global batch size, or not during this fit."""
        bounds = self._controller.bounds
        bounds.check(global_batch_size)
        if not is_training:
            return
        stage = self._position.stage
        needed, most = num_steps(stage.num_samples, global_batch_size), stage.num_steps
        if needed > most and not stage.is_endless:
            raise ValueError(
                f"global_batch_size={global_batch_size} needs {needed} steps an epoch, and Keras "
                f"runs no more than the {most} that it counted when fit began. Set "
                f"model.stop_training, resize when fit has returned, and go on with "
                f"balancer.dataset(source) and fit(initial_epoch=...). After a fit that was "
                f"interrupted, call balancer.loop.end_training() first."
            )

    def want(self, global_batch_size: int) -> None:
        """The change waits from now on."""
        self._wanted = global_batch_size

    def cancel(self) -> None:
        """Forgets a change that waits."""
        self._wanted = None

    def finish(self) -> None:
        """Makes the change that waits; no round of decision is under way."""
        if self._wanted is None:
            return
        size, self._wanted = self._wanted, None
        before = self._controller.plan
        self._controller.resize(size)
        self._current = size
        self._position.resize()
        if self._collective.rank == 0:
            _LOGGER.info(
                "global batch %d -> %d: %s -> %s",
                before.global_batch_size,
                size,
                before,
                self._controller.plan,
            )
        if self._on_resize is not None:
            self._on_resize(size)

    def change_ranks(self) -> None:
        """The job has other ranks, and the controller may have another global batch size."""
        size = self._controller.global_batch_size
        keeps_steps, self._current = self._current == size, size
        self._position.change_ranks(keeps_steps=keeps_steps)
