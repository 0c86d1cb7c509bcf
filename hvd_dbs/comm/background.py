"""A daemon thread that runs tasks in their order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")
_Task = tuple[Future[Any], Callable[[], Any]]


class BackgroundThread:
    """Does one thing after the other, in the order in which they are given.

    It never keeps a process alive: the threads of a `ThreadPoolExecutor` are joined when Python
    ends, and joining one that waits for ranks that are no more would deadlock.

    Args:
        name: Of the thread.

    Attributes:
        is_closed: Whether nothing more is begun.

    Example:
        >>> thread = BackgroundThread("example")
        >>> thread.start(lambda: 6 * 7).result()
        42
    """

    def __init__(self, name: str) -> None:
        self.is_closed = False
        self._name = name
        self._given: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Future[Any] | None = None

    def start(self, function: Callable[[], _T]) -> Future[_T]:
        """Gives it something to do; what is given to a closed one is cancelled.

        Raises:
            RuntimeError: If the process can have no more threads; the function is not called then.
        """
        future: Future[_T] = Future()
        if self.is_closed:
            future.cancel()
            return future
        self._last = future
        self._given.put((future, function))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._thread = self._last = None
                self._given.get()  # The thread of a later call must not do it.
                raise
        return future

    def do(self, function: Callable[[], _T]) -> _T:
        """Does something after all that was given, and waits for it.

        Within the thread it is part of what is under way.
        """
        is_this = threading.current_thread() is self._thread
        if is_this or self._last is None or self._last.done():
            return function()
        return self.start(function).result()

    def close(self) -> None:
        """What is under way may end; what is after it is cancelled."""
        self.is_closed = True
        self._given.put(None)

    def _run(self) -> None:
        while (task := self._given.get()) is not None:
            future, function = task
            if self.is_closed or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # The caller's, who asks for the result.
                future.set_exception(error)
            del task, future, function  # Nothing that it has used lives on while it waits.
