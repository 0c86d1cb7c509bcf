"""Logs which rank an error has ended, and whether it or another rank has failed."""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

_LOGGER = logging.getLogger(__name__)

LAST_SECONDS = 20.0
"""How long a rank that has failed, or leaves, takes to end, at most: the others wait for it."""


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error means that another rank is gone, not that this one has failed.

    A failed operation of Horovod's reaches Python as TensorFlow's UnknownError, from the graph of
    a training step as from an eager call, however Keras changes its traceback.
    """
    if isinstance(error, HorovodInternalError):
        return True
    if not isinstance(error, tf.errors.UnknownError | tf.errors.AbortedError):
        return False
    words = r"horovod has been shut down|\bgloo\b|\bnccl"
    return re.search(words, error.message, re.I) is not None


def last_line(error: BaseException) -> str:
    """An error's text, without the graph's traceback before it."""
    return _after_graph(error).partition(". ")[0][:200]


def _after_graph(error: BaseException) -> str:
    """What of TensorFlow's error is not about its graph: the user's own one in a data pipeline."""
    lines = [line for line in str(error).splitlines() if line and not line.startswith("\t")]
    return lines[-1] if lines else type(error).__name__


def name_failures() -> None:
    """Lets an error that ends this process name the rank. Called again where its rank changes.

    Launchers mix the output of all ranks, and may name the wrong one: all of them fail when one
    does.
    """
    report = sys.excepthook
    if not isinstance(report, _CrashReport):
        if hvd.size() == 1:
            return
        report = sys.excepthook = _CrashReport(sys.excepthook)
    report.rank, report.size = hvd.rank(), hvd.size()
    # Registered last, so that it runs before Horovod's own functions, which may wait for good.
    atexit.unregister(report.leave)
    atexit.register(report.leave)


class _CrashReport:
    """What Python calls for an error that nobody catches.

    Args:
        before: What it called so far.
    """

    def __init__(self, before: Callable[..., Any]) -> None:
        self.rank, self.size = 0, 1
        self._before = before
        self._has_failed = False

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._has_failed = True
        name = f"rank {self.rank} of {self.size} (host {socket.gethostname()}, "
        name += f"process {os.getpid()})"
        if is_lost_peer(error):
            _LOGGER.critical(
                "%s ends: another rank is gone; see its own last line, or the launcher's. (%s)",
                name,
                last_line(error),
            )
            return
        self._before(kind, error, trace)
        is_of_graph = isinstance(error, tf.errors.OpError)
        text = _after_graph(error) if is_of_graph else str(error).partition("\n")[0]
        _LOGGER.critical("%s has failed: %s: %s", name, kind.__name__, text[:500])

    def leave(self) -> None:
        """Leaves the job, and ends in time: another rank may be frozen and never answer."""
        if not self._has_failed:
            return
        end_in_time()
        hvd.shutdown()


def end_in_time() -> None:
    """Lets the kernel end this process after `LAST_SECONDS`, if it has not ended itself."""
    # What hangs may be the end of Python itself, or hold its lock.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, LAST_SECONDS)
