"""What the steps of this rank took since the last round of decision, and whether that is news."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import ELASTICITY
from hvd_dbs.balancing.measurement import typical_seconds
from hvd_dbs.balancing.pace_news import STEPS_WATCHED, UsualPace
from hvd_dbs.cluster.own_time import OwnTime
from hvd_dbs.ops.step_clock import StepClock

_MOST_STEPS = 4096
"""Of a longer round, the last ones count."""

_NEAR = 0.25
"""Steps whose work differs by more than this from a batch size say little about it."""

_NO_STEPS = np.zeros((0, 4))


class RankPace:
    """Reads the clock, without what balancing itself took between the steps.

    `collect` and `take` are the training's; what the steps say is found out beside it, by one
    thread at a time, in the order in which they were taken.

    Args:
        clock: This rank's.

    Attributes:
        is_cut_by_cost: Whether windows are cut by cost, so that a plan's batch size is only about
            what a step costs.
    """

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self.own_time = OwnTime()
        self.is_cut_by_cost = False
        self._taken = self._steps = _NO_STEPS
        self._usual = UsualPace.unknown(1)
        self._is_news = False

    def restart(self) -> None:
        """Forgets the steps that were run so far, but not what is usual."""
        self.clock.drain()
        self.own_time.restart()
        self._taken = self._steps = _NO_STEPS
        self._is_news = False

    def collect(self) -> None:
        """Takes from the clock what it has: of a long round, the last steps are enough."""
        times = self.clock.drain()
        step_seconds = times.busy_seconds + times.wait_seconds
        self.own_time.subtract_from(times.busy_seconds)
        new = np.array([times.busy_seconds, times.num_samples, times.data_seconds, step_seconds]).T
        self._taken = np.concatenate([self._taken, new])[-_MOST_STEPS:] if self._taken.size else new

    def take(self) -> NDArray[np.float64]:
        """The steps that nobody has taken yet, shape `[steps, 4]`.

        Of each its busy seconds, its samples, how many of its seconds it waited for data, and how
        many it took as a whole.
        """
        self.collect()
        taken, self._taken = self._taken, _NO_STEPS
        return taken

    def is_news(self, steps: NDArray[np.float64]) -> bool:
        """Whether the last steps are far from what the last round has said.

        If so, the next round hears of them alone: the mean with the steps before is nobody's pace.

        Args:
            steps: Those taken since the last call, shape `[steps, 4]`.
        """
        self._remember(steps)
        last = self._steps[-STEPS_WATCHED:]
        news = self._usual.news(last[:, :1], last[:, 1:2])[:, 0]
        self._is_news = bool(news.any())
        if self._is_news:
            self._steps = last[news]
        return self._is_news

    def measure(self, steps: NDArray[np.float64], batch_size: int) -> tuple[float, int]:
        """Busy seconds a step at a batch size since the last round, and of how many steps.

        Where windows are cut by cost, those that steps of about that work would have taken at it.

        Args:
            steps: Those taken since the last call, shape `[steps, 4]`.
            batch_size: This rank's in the last of them.
        """
        self._remember(steps)
        chosen = self._chosen(batch_size)
        busy_seconds, work = self._steps[chosen, :2].T
        # Kernels tune themselves in the first steps of a batch size: they are not its pace. Cut by
        # cost, no two steps have the same one.
        is_new = np.isnan(self._steps[:1, 0]).any() or not (self.is_cut_by_cost or chosen.all())
        busy_seconds = busy_seconds * (batch_size / work) ** ELASTICITY
        seconds = typical_seconds(busy_seconds, warmup=2 if is_new and not self._is_news else 0)
        self._usual = self._usual.after(
            np.array([float(batch_size)]), np.array([seconds]), busy_seconds[:, np.newaxis]
        )
        self._steps, self._is_news = _NO_STEPS, False
        return seconds, int(np.isfinite(busy_seconds).sum())

    def _chosen(self, batch_size: int) -> NDArray[np.bool_]:
        """Which steps were run at a batch size."""
        work = self._steps[:, 1]
        if not self.is_cut_by_cost:
            return np.asarray(work == batch_size)
        with np.errstate(divide="ignore"):
            near = np.abs(np.log(work / batch_size)) < _NEAR
        return np.asarray(near if near.any() else work > 0)

    def _remember(self, steps: NDArray[np.float64]) -> None:
        self._steps = np.concatenate([self._steps, steps])[-_MOST_STEPS:]
