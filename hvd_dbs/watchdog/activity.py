"""What a thread that trains is doing, read from its Python stack by another thread."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from hvd_dbs.watchdog.heartbeat import BUILDING, LEFT, REGROUPING, WAITING

_COLLECTIVES = (
    "/hvd_dbs/comm/",
    "/hvd_dbs/job/decision.py",
    "/hvd_dbs/tensorflow/variables.py",
    "/horovod/tensorflow/",
    "/mpi4py/",
)
_ELASTIC = "/hvd_dbs/tensorflow/elastic.py"
_INDEX_STAGE = "/hvd_dbs/data/index_stage.py"
_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = (_PACKAGE, "/site-packages/", "/dist-packages/", "/lib/python", "<frozen")


class Activity:
    """Watches the thread that makes it, which is inside a call of `fit`.

    Example:
        >>> activity = Activity()  # doctest: +SKIP
        >>> activity.describe(in_collective=False)  # doctest: +SKIP
        ('validating', '')
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        # The call itself: an elastic job goes on in another call of the same function.
        self._fit = call_of_fit()
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the thread has left `fit`, by an exception for example."""
        if self._fit is not None and not any(frame is self._fit for frame in _stack(self._thread)):
            self._fit, self._is_over = None, True  # A call that is kept keeps all it has used.
        return self._is_over

    def after_fit(self) -> str:
        """What the thread is doing once it has left `fit`: `LEFT` or `REGROUPING`."""
        frames = list(_stack(self._thread))
        own = next((frame for frame in frames if not is_library(frame)), None)
        inside = frames[: frames.index(own)] if own is not None else frames
        regroups = any(frame.f_code.co_filename.endswith(_ELASTIC) for frame in inside)
        return REGROUPING if regroups else LEFT

    def describe(self, in_collective: bool) -> tuple[str, str]:
        """What the thread is doing, to be read after "it is", and the operation that it waits in.

        Args:
            in_collective: Whether the step under way has this rank's gradients and waits for the
                sum of all; Python's stack does not show that.

        Returns:
            "waiting for others", "saving", "validating", "building the graph", "reading data" and
            where, "reading data or computing", or "in" some function and where. The operation is
            the same text on all ranks that wait in it, and empty if this rank does not wait.
        """
        stack = list(_stack(self._thread))
        files = [frame.f_code.co_filename for frame in stack]
        names = [frame.f_code.co_name for frame in stack]
        if any(map(_is_collective, stack)):
            return WAITING, _operation(stack)
        if any("/keras/src/saving/" in f or f.endswith("model_checkpoint.py") for f in files):
            return "saving", ""
        if "evaluate" in names and any("/keras/" in file for file in files):
            return "validating", ""
        own = next((frame for frame in stack if not is_library(frame)), None)
        inside = stack.index(own) if own is not None else len(stack)
        if any(is_fit(frame) for frame in stack[:inside]):  # No function of the user's in it.
            if any(file.endswith("/callback_list.py") for file in files[:inside]):
                return f"in {place_of(stack[0])}", ""
            if in_collective:
                return WAITING, "the sum of gradients"
            if any(file.endswith("/func_graph.py") for file in files[:inside]):
                return BUILDING, ""
            reading = _reading(self._thread)
            return f"reading data, {reading}" if reading else "reading data or computing", ""
        return f"in {place_of(own)}" if own is not None else "somewhere", ""


def call_of_fit() -> FrameType | None:
    """The frame of the innermost call of Keras's `fit` that the caller is in; None: in none."""
    return next((frame for frame in _stack(threading.get_ident()) if is_fit(frame)), None)


def is_evaluating() -> bool:
    """Whether the main thread is in a call of Keras's `evaluate`; for any thread to ask."""
    main = threading.main_thread().ident
    return main is not None and any(
        frame.f_code.co_name == "evaluate" and "/keras/" in frame.f_code.co_filename
        for frame in _stack(main)
    )


def _reading(training_thread: int) -> str:
    """Where Python code is preparing data, if some is: in a generator or `py_function`."""
    for thread in sys._current_frames():
        if thread == training_thread:
            continue
        stack = list(_stack(thread))
        files = [frame.f_code.co_filename for frame in stack]
        if not any(file.endswith("/script_ops.py") for file in files):
            continue
        if any(file.endswith(_INDEX_STAGE) for file in files):
            continue  # It waits for the plan of a step that lies ahead.
        own = next((frame for frame in stack if not is_library(frame)), None)
        if own is not None:
            return f"in {place_of(own)}"
    return ""


def _stack(thread: int) -> Iterator[FrameType]:
    """The frames of a thread, the innermost first; none if it has ended."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_fit(frame: FrameType) -> bool:
    """Whether it is a call of Keras's `fit`."""
    return frame.f_code.co_name == "fit" and "/keras/" in frame.f_code.co_filename


def is_library(frame: FrameType) -> bool:
    """Whether it is not the user's own code: an installed library, or this one."""
    file = frame.f_code.co_filename
    # TensorFlow makes the Python functions of Horovod's operations from a text.
    is_made = file == "<string>" and frame.f_globals.get("__name__") != "__main__"
    return is_made or any(part in file for part in _LIBRARIES)


def _operation(stack: list[FrameType]) -> str:
    """The collective function that is called, and its caller, without lines: ranks may differ."""
    first = next(i for i, frame in enumerate(stack) if _is_collective(frame))
    callers = (i for i in range(first, len(stack)) if not _is_collective(stack[i]))
    caller = next(callers, None)
    if caller is None:
        return stack[-1].f_code.co_name
    called = stack[caller - 1].f_code.co_name
    return f"{called}, called by {place_of(stack[caller], has_line=False)}"


def _is_collective(frame: FrameType) -> bool:
    return any(part in frame.f_code.co_filename for part in _COLLECTIVES)


def place_of(frame: FrameType, has_line: bool = True) -> str:
    """Its function, file and line, for messages."""
    code, line = frame.f_code, f", line {frame.f_lineno}" if has_line else ""
    return f"{code.co_name} ({os.path.basename(code.co_filename)}{line})"
