"""Logs which rank an error has ended, and whether it or another rank has failed."""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from hvd_dbs.watchdog.activity import is_library, place_of

_LOGGER = logging.getLogger(__name__)

LAST_SECONDS = 20.0
"""How long a rank that has failed, or leaves, takes to end, at most: the others wait for it.

It begins when the error is reported: Python waits for threads, which may hang, before `atexit`.
"""
_OTHERS_SECONDS = 2.0
"""For which a rank that has failed stays: launchers kill the others as soon as one has ended, and
these have yet to report why they end."""


_WRAPPERS = ("in user code:", "Exception encountered when calling")
"""How the texts begin that autograph and Keras put around an error."""
_RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): ")
"""How the last line of a trace begins."""
_OF_HOROVOD = re.compile(
    r"horovod has been shut down|\bgloo/[^:\]]*\.(cc|h):\d+\]|(?<![\w/.-])nccl\w*(?![\w/-]|\.\w)",
    re.IGNORECASE,
)
"""What a message of Horovod's, Gloo's or NCCL's has; paths of the user may have their names too."""
_PLACE = re.compile(
    r"^(?:\{\{function_node .*?\}\} )?(?:Error in user-defined function .*? iterator: \S+: )?"
)
"""Where in a data pipeline an error was, before what it says."""


class Notice(Protocol):
    """What the first rank that fails lets the others know."""

    def send(self, text: str) -> None:
        """To all other ranks; the first text counts."""

    def received(self) -> str:
        """What another rank has sent, or ""."""


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error means that another rank is gone, not that this one has failed.

    A failed operation of Horovod's reaches Python as TensorFlow's UnknownError, from the graph of
    a training step as from an eager call, however Keras changes its traceback.
    """
    if isinstance(error, HorovodInternalError):
        return True
    if not isinstance(error, tf.errors.UnknownError | tf.errors.AbortedError):
        return False
    return _OF_HOROVOD.search(error.message) is not None


def last_line(error: BaseException) -> str:
    """An error's text, without the graph's traceback before it."""
    return _reason(error).partition(". ")[0][:200]


def _reason(error: BaseException) -> str:
    """An error's text in a line, without the traces that TensorFlow and Keras put around it."""
    text = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if not line.startswith("\t")]
    own = [line for line in lines if line and not line.startswith(_WRAPPERS)]
    if not own:
        return type(error).__name__
    is_of_graph = isinstance(error, tf.errors.OpError)
    raised = [line for line in own if _RAISED.match(line)]
    if raised and (is_of_graph or text.startswith(_WRAPPERS)):
        return raised[-1].removeprefix(f"{type(error).__name__}: ")
    return _PLACE.sub("", own[-1 if is_of_graph else 0])


def name_failures(notice: Notice | None = None) -> None:
    """Lets an error that ends this process name the rank. Called again where its rank changes.

    Launchers mix the output of all ranks, and may name the wrong one: all of them fail when one
    does.

    Args:
        notice: By which the other ranks know of it; None: they do not.
    """
    report = sys.excepthook
    if not isinstance(report, _CrashReport):
        if hvd.size() == 1:
            return
        report = sys.excepthook = _CrashReport(sys.excepthook)
    report.rank, report.size, report.notice = hvd.rank(), hvd.size(), notice
    # Registered last, so that it runs before Horovod's own functions, which may wait for good.
    atexit.unregister(report.leave)
    atexit.register(report.leave)


def explain_failures(explain: Callable[[BaseException], str]) -> None:
    """Lets an error that ends this process be reported in other words.

    Args:
        explain: Gives them for an error, or "" where it has none.
    """
    if isinstance(sys.excepthook, _CrashReport):
        sys.excepthook.explain = explain


def notify_others(text: str) -> None:
    """Lets the other ranks know why this one fails, before it does. Not collective.

    A notice that fails is logged: the error that it is about is what counts.
    """
    if not isinstance(sys.excepthook, _CrashReport) or sys.excepthook.notice is None:
        return
    try:
        sys.excepthook.notice.send(text)
    except Exception as error:
        _LOGGER.warning("the other ranks get no notice: %s", error)


def notice_of_others(error: BaseException) -> str:
    """Why an operation has failed, if another rank has sent it; "" if it is not known."""
    report = sys.excepthook
    if not isinstance(report, _CrashReport) or report.notice is None or not is_lost_peer(error):
        return ""
    return report.notice.received()


class _CrashReport:
    """What Python calls for an error that nobody catches.

    Args:
        before: What it called so far.
    """

    def __init__(self, before: Callable[..., Any]) -> None:
        self.rank, self.size = 0, 1
        self.notice: Notice | None = None
        self.explain: Callable[[BaseException], str] = lambda error: ""
        self._before = before
        self._has_failed = False
        self._has_limit = False

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._has_failed = True
        try:
            self._report(kind, error, trace)
        finally:
            if _ends_python(error):
                self._end_in_time()

    def leave(self) -> None:
        """Leaves the job, and ends in time: another rank may be frozen and never answer."""
        if not self._has_failed:
            return
        self._end_in_time()
        hvd.shutdown()
        if self.notice is not None:
            time.sleep(_OTHERS_SECONDS)

    def _end_in_time(self) -> None:
        """Begins the limit, once."""
        if not self._has_limit:
            self._has_limit = True
            end_in_time()

    def _report(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        name = f"rank {self.rank} of {self.size} (host {socket.gethostname()}, "
        name += f"process {os.getpid()})"
        if is_lost_peer(error):
            if text := notice_of_others(error):
                _LOGGER.critical("%s ends because of another rank: %s", name, text)
                return
            _LOGGER.critical(
                "%s ends: another rank is gone while this one was %s; see its own last line, or "
                "the launcher's. If none has an error, it has not made this call: all ranks must "
                "make it. (%s)",
                name,
                _place_in_script(trace),
                last_line(error),
            )
            return
        text = self.explain(error) or _reason(error)[:500]
        text = f"{name} has failed: {kind.__name__}: {text}"
        notify_others(text)
        self._before(kind, error, trace)
        _LOGGER.critical("%s", text)


def _place_in_script(trace: TracebackType | None) -> str:
    """Where in the user's own code an error was."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    own = [frame for frame in frames if not is_library(frame)]
    return f"in {place_of(own[-1])}" if own else "training"


def _ends_python(error: BaseException) -> bool:
    """Whether Python ends with this error, which it reports now.

    Its console goes on after an error, as does a program that calls `sys.excepthook` by itself.
    """
    if sys.flags.inspect or hasattr(sys, "ps1"):
        return False
    is_main_thread = threading.current_thread() is threading.main_thread()
    return is_main_thread and getattr(sys, "last_value", None) is error


def end_in_time() -> None:
    """Lets the kernel end this process after `LAST_SECONDS`, if it has not ended itself."""
    # What hangs may be the end of Python itself, or hold its lock.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, LAST_SECONDS)
