"""Processes that simulate, and end when whoever wants the results does."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import BaseContext


@contextmanager
def workers(num_workers: int, context: BaseContext | None = None) -> Iterator[ProcessPoolExecutor]:
    """A pool of so many processes, which end with the block, or with this process.

    Args:
        num_workers: How many at most.
        context: How they are started; None: as Python does.
    """
    with ProcessPoolExecutor(num_workers, context, initializer=_end_with_parent) as pool:
        try:
            yield pool
        except BaseException:  # Such as Ctrl-C: else the pool would do first all that is left.
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def _end_with_parent() -> None:
    """A worker ends when its parent does, whatever ends that, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG.
