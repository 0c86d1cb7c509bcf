"""How busy this host is with what is not ours, sampled outside the training step."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Load:
    """The load of a host.

    Attributes:
        cpu: Processor use by others than this process, 0 to 1; NaN: unknown.
        memory: Memory in use, 0 to 1; NaN: unknown.
    """

    cpu: float
    memory: float


UNKNOWN = Load(math.nan, math.nan)


class HostLoad:
    """Samples the load every half second on a thread of its own.

    `latest()` costs nothing and never waits: it returns the last sample. What goes wrong while
    sampling is said once and makes the load unknown.

    Processor use is the host's, less what this process and its children used, over the
    processors of the host. Other ranks on the same host count as others: they compete too.

    Args:
        period_seconds: Time between two samples.

    Example:
        >>> with HostLoad() as host_load:  # doctest: +SKIP
        ...     host_load.latest()
        Load(cpu=0.02, memory=0.31)
    """

    def __init__(self, period_seconds: float = 0.5) -> None:
        if not period_seconds > 0:
            raise ValueError(f"period_seconds={period_seconds} must be positive.")
        self._period = period_seconds
        self._latest = UNKNOWN
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed = False

    def start(self) -> None:
        """Begins to sample; harmless if it already does."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, name="hvd_dbs host load", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and waits for it; the load is unknown from then on."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None
        self._latest = UNKNOWN

    def latest(self) -> Load:
        """The last sample; unknown before the first."""
        return self._latest

    def __enter__(self) -> HostLoad:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        sample: Callable[[], Load] | None = None
        while True:
            try:
                load = UNKNOWN if sample is None else sample()
                sample = sample or _Sampler()  # Of almost no time, a load could be anything.
            except Exception as error:  # Balancing never ends the training.
                sample, load = None, UNKNOWN
                if not self._failed:
                    _LOGGER.warning("the host's load is unknown: %r", error)
                self._failed = True
            if self._ended.is_set():
                return
            self._latest = load
            if self._ended.wait(self._period):
                return


class _Sampler:
    """Processor time between two calls."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before = self._times()

    def __call__(self) -> Load:
        before, self._before = self._before, self._times()
        elapsed, busy, own = (now - then for now, then in zip(self._before, before, strict=True))
        cpu = math.nan
        if elapsed > 0:
            cpu = min(max((busy - own) / elapsed, 0.0), 1.0)
        return Load(cpu, min(max(psutil.virtual_memory().percent / 100.0, 0.0), 1.0))

    def _times(self) -> tuple[float, float, float]:
        """Seconds of all processors, of those the busy ones, of those our own."""
        host = psutil.cpu_times()
        # Guest time is contained in user time.
        fields = [n for n in host._fields if n not in ("guest", "guest_nice")]
        total = sum(getattr(host, name) for name in fields)
        idle = host.idle + getattr(host, "iowait", 0.0)
        own = self._process.cpu_times()
        return total, total - idle, own.user + own.system + own.children_user + own.children_system
