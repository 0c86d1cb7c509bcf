"""Names the rank that keeps a training from going on."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any

import keras

from hvd_dbs.balancer import Balancer, require_balancer
from hvd_dbs.cluster import agreement
from hvd_dbs.cluster.activity import Activity
from hvd_dbs.cluster.frozen_process import own_process
from hvd_dbs.cluster.heartbeat import Beater, Listener, Meeting
from hvd_dbs.cluster.standstill import SignOfLife, Standstill

_LOGGER = logging.getLogger(__name__)


class ProgressWatchdogCallback(keras.callbacks.Callback):
    """Says in rank 0's log which rank makes no progress, where, and what it is doing.

    All ranks of a synchronous job stand still together, so a thread of each tells rank 0 what its
    rank is doing, by UDP beside the collectives: who is not waiting for others is the one that
    they wait for. Ranks that are silent (frozen, dead) are named too, and other ranks say when
    rank 0 is. Belongs on all ranks.

    Args:
        balancer: The balancer of the training.
        warn_seconds: After how long without progress a rank is named. Horovod's own warning
            comes after 60 s.
        abort_seconds: After how long it ends itself, or, where it is silent, is killed by another
            rank on its host (rank 0 ends itself where there is none), so that the launcher ends the
            job, and an elastic job goes on without it; None: never. Should be longer than the first
            step and any validation or saving take.

    Raises:
        TypeError: If `balancer` is not a Balancer.
        ValueError: If a number of seconds is not positive; on all ranks when training begins, if
            ranks differ in their arguments.
    """

    def __init__(
        self, balancer: Balancer, warn_seconds: float = 20.0, abort_seconds: float | None = None
    ) -> None:
        super().__init__()
        if not warn_seconds > 0 or (abort_seconds is not None and abort_seconds < warn_seconds):
            raise ValueError(
                f"warn_seconds={warn_seconds}, abort_seconds={abort_seconds}: expected a positive "
                f"number of seconds, and to abort not before the warning."
            )
        self._balancer = require_balancer(balancer, "ProgressWatchdogCallback")
        self._warn_seconds = warn_seconds
        self._abort_seconds = abort_seconds
        self._place = f"host {socket.gethostname()}, process {os.getpid()}"
        self._process = own_process()
        self._progress = 0
        self._epoch = 0
        self._last_step = "none"
        self._activity: Activity | None = None
        self._watch: Listener | Beater | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts the threads, and tells all ranks where rank 0 listens."""
        collective = self._balancer.collective
        given = {"warn_seconds": self._warn_seconds, "abort_seconds": self._abort_seconds}
        agreement.require_equal(collective, {name: repr(value) for name, value in given.items()})
        self._stop()
        self._activity = Activity()
        one_host = len(set(agreement.hostnames(collective))) == 1
        period = min(1.0, self._warn_seconds / 8)
        error: OSError | None = None
        if collective.rank == 0:
            standstill = Standstill(
                collective.size, period, self._warn_seconds, self._abort_seconds, time.monotonic()
            )
            try:
                self._watch = Listener(standstill, self._sign, one_host)
            except OSError as caught:
                error = caught
        text = self._watch.meeting.to_json() if isinstance(self._watch, Listener) else ""
        meeting = agreement.allgather_text(collective, text)[0]
        if not meeting:
            if error is not None:
                _LOGGER.warning("nobody watches over progress: %r", error)
            return
        if self._watch is None:
            self._watch = Beater(
                Meeting.from_json(meeting),
                self._sign,
                period,
                self._warn_seconds,
                self._abort_seconds,
            )
        self._watch.start()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes progress."""
        self._progress += 1
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes progress."""
        self._progress += 1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes progress, and the step."""
        self._progress += 1
        self._last_step = f"epoch {self._epoch}, step {batch}"

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes progress."""
        self._progress += 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes progress."""
        self._progress += 1

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stops the threads."""
        self._stop()

    def _sign(self) -> SignOfLife | None:
        """What this rank is doing, asked by a thread; None if a fit has ended by an error."""
        if self._activity is None or self._activity.is_over:
            return None
        doing = self._activity.describe(in_collective=self._balancer.clock.waits_for_others)
        return SignOfLife(
            self._balancer.rank,
            self._place,
            self._progress,
            self._last_step,
            doing[:500],
            self._process,
        )

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._watch = None
