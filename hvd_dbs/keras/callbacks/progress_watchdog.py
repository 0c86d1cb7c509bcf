"""Names the rank that keeps a training from making progress."""

from __future__ import annotations

import functools
import logging
import time
from numbers import Real
from typing import Any

import horovod.tensorflow as hvd
import keras

from hvd_dbs.balancer import Balancer, require_balancer
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import is_elastic
from hvd_dbs.keras.callback_checks import require_same_fit
from hvd_dbs.watchdog.activity import Activity
from hvd_dbs.watchdog.computing import ComputingTime
from hvd_dbs.watchdog.contacts import Contact, Endpoint, host_addresses
from hvd_dbs.watchdog.heartbeat import WAITING, Heartbeat
from hvd_dbs.watchdog.heartbeat_client import HeartbeatClient
from hvd_dbs.watchdog.heartbeat_server import HeartbeatServer
from hvd_dbs.watchdog.limits import Limits, gloo_seconds
from hvd_dbs.watchdog.packets import KeyPair
from hvd_dbs.watchdog.process_kill import ProcessName
from hvd_dbs.watchdog.stall_detection import StallDetector

_LOGGER = logging.getLogger(__name__)


class ProgressWatchdogCallback(keras.callbacks.Callback):
    """Names in rank 0's log the rank that makes no progress, and what it is doing.

    All ranks of a synchronous job stand still together, so a thread of each sends rank 0 a
    heartbeat by UDP: a rank that does not wait for others is the one that they wait for. Silent
    ranks (frozen, dead, out of reach) are named too; the others name rank 0 if it is silent.
    Belongs on all ranks.

    With `abort_seconds` a rank that keeps others waiting is ended, so that the launcher ends the
    job, and an elastic job goes on without it:

    - A rank that makes no progress and does not compute ends itself. A slow rank, which uses CPU
      time or builds the graph, is only named.
    - A silent rank is killed by another rank on its host if its process has not run at all for
      some seconds. A process that runs is only named: its heartbeats may be blocked, or it may
      have left `fit`.
    - A silent rank on a host of which no rank reports: nobody is ended in an elastic job, which
      goes on after Gloo's timeout. Another job cannot go on without it, and rank 0 ends it after
      `abort_seconds` and Gloo's timeout; this is the one reason for which rank 0 ends a job. If
      the host is rank 0's own, the other ranks end after twice that time.

    Nobody is ended while all ranks wait for the network, or while rank 0 or another rank has left
    `fit` or regroups. Where UDP is blocked, one warning names the hosts whose frozen ranks cannot
    be named; training is not affected.

    Args:
        balancer: The balancer of the training.
        warn_seconds: After how long without progress a rank is named. Horovod's own warning
            comes after 60 s. In jobs of more than some 2,500 ranks it takes longer, and so does the
            end of a rank: heartbeats come more rarely, to spare rank 0.
        abort_seconds: After how long it is ended; None: never. Choose it longer than any wait of a
            rank that uses no CPU time: for slow storage, or for one step of a GPU. In an elastic
            job it must be below Gloo's timeout (HOROVOD_GLOO_TIMEOUT_SECONDS, 30 s by default).

    Raises:
        TypeError: If `balancer` is not a Balancer.
        ValueError: If a number of seconds is not positive; on all ranks when training begins, if
            ranks differ in their arguments, or `abort_seconds` of an elastic job is not below
            Gloo's timeout.
    """

    def __init__(
        self, balancer: Balancer, warn_seconds: float = 20.0, abort_seconds: float | None = None
    ) -> None:
        super().__init__()
        last = warn_seconds if abort_seconds is None else abort_seconds
        are_numbers = all(isinstance(one, Real) for one in (warn_seconds, last))
        if not are_numbers or not 0 < warn_seconds <= last:
            raise ValueError(
                f"warn_seconds={warn_seconds!r}, abort_seconds={abort_seconds!r}: expected "
                f"positive numbers of seconds, and to abort not before the warning."
            )
        self._balancer = require_balancer(balancer, "ProgressWatchdogCallback")
        self._warn_seconds = warn_seconds
        self._abort_seconds = abort_seconds
        self._rank = self._progress = self._num_steps = 0
        self._epoch = 0
        self._last_step = "none"
        self._reported = -1  # Progress, in the last heartbeat.
        self._computing = ComputingTime()
        self._activity: Activity | None = None
        self._thread: HeartbeatServer | HeartbeatClient | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts the threads. Collective."""
        self._stop()
        collective = self._balancer.collective
        require_same_fit(self, collective)
        given = {"warn_seconds": self._warn_seconds, "abort_seconds": self._abort_seconds}
        agreement.require_equal(collective, {name: repr(value) for name, value in given.items()})
        limits = self._limits(collective.size)
        with agreement.raising_together(collective, ValueError):
            warning = limits.check()
            if warning and collective.rank == 0:
                _LOGGER.warning("%s", warning)
        self._activity = Activity()
        self._rank = collective.rank  # In an elastic job it changes before all threads end.
        keys = _keys()
        contact = Contact(ProcessName.own(), keys.public, host_addresses())
        texts = agreement.allgather_text(collective, contact.to_json())
        contacts = [Contact.from_json(text) for text in texts]
        endpoint = ""
        if collective.rank == 0:
            processes = [contact.process for contact in contacts]
            detector = StallDetector(processes, limits, time.monotonic())
            try:
                self._thread = server = HeartbeatServer(contacts, keys, detector, self._heartbeat)
                endpoint = server.endpoint.to_json()
            except OSError as os_error:
                _LOGGER.warning("nobody watches over progress: %r", os_error)
        endpoint = agreement.allgather_text(collective, endpoint)[0]
        if endpoint and collective.rank != 0:
            self._thread = HeartbeatClient(
                collective.rank,
                Endpoint.from_json(endpoint),
                contacts,
                keys,
                limits,
                self._heartbeat,
            )
        if self._thread is not None:
            self._thread.start()

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
        self._num_steps += 1
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

    def _limits(self, size: int) -> Limits:
        uses_gloo = is_elastic() or (size > 1 and hvd.gloo_enabled())
        gloo = gloo_seconds() if uses_gloo else None
        return Limits.of_job(size, self._warn_seconds, self._abort_seconds, is_elastic(), gloo)

    def _heartbeat(self) -> Heartbeat:
        """What this rank is doing, asked by a thread."""
        assert self._activity is not None
        if self._activity.is_over:
            doing, operation = self._activity.after_fit(), ""
        else:
            in_collective = self._balancer.clock.waits_for_others
            doing, operation = self._activity.describe(in_collective)
        stands = self._progress == self._reported and doing != WAITING
        self._reported = self._progress
        return Heartbeat(
            self._rank,
            self._progress,
            self._num_steps,
            self._last_step,
            doing[:500],
            operation[:200],
            self._computing.seconds() if stands else self._computing.skip(),
        )

    def _stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()
        self._thread = None


@functools.cache
def _keys() -> KeyPair:
    """Of this process, for all its trainings: to compute a key takes milliseconds."""
    return KeyPair()
