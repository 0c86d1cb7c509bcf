"""Finds processes of this host that do not run any more, and kills them."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_LEAST_LOOKS = 4
_LEAST_SECONDS = 2.0
"""A process that has not run between so many looks, in so many seconds, is frozen."""
_STALE_SECONDS = 30.0


@dataclass(frozen=True)
class ProcessName:
    """What names a process on all hosts.

    Attributes:
        host: Its host.
        pid: Its number there.
        start: When it was started, in clock ticks since the host's start: numbers are used again.
        namespace: Within which its number is one: of the host's start and of the container. Two
            machines or containers may have the same name.
    """

    host: str
    pid: int
    start: int
    namespace: str = ""

    @classmethod
    def own(cls) -> ProcessName:
        """Of this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), pid, _start_of(pid) or 0, _namespace())

    def __str__(self) -> str:
        return f"host {self.host}, process {self.pid}"

    @property
    def place(self) -> tuple[str, str]:
        """The same for processes that can see and kill each other."""
        return self.host, self.namespace

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this host that has not ended."""
        is_of_this_place = self.place == (socket.gethostname(), _namespace())
        return is_of_this_place and _start_of(self.pid) == self.start > 0


@dataclass(frozen=True)
class ThreadUse:
    """What a thread of a process has used so far.

    Attributes:
        is_ready: Whether it runs, or waits for a core.
        ticks: CPU time, in clock ticks.
        num_waits: How often it has given up its core to wait for something.
        num_preempted: How often its core was taken from it.
    """

    is_ready: bool
    ticks: int
    num_waits: int
    num_preempted: int


@dataclass
class _Looks:
    threads: dict[str, ThreadUse]
    since: float
    last: float
    num: int = 1


class ProcessObserver:
    """Looks at processes of this host, from time to time, and sees whether they have run since.

    A process has run if one of its threads was scheduled (its context switches or its CPU time
    have changed), or is ready to run: a starved process waits for a core, and is healthy.
    """

    def __init__(self) -> None:
        self._looks: dict[ProcessName, _Looks] = {}

    def has_run(self, process: ProcessName) -> bool | None:
        """Whether it has run since the looks before.

        Returns:
            None: not known yet, or it is no process of this host.
        """
        threads = threads_of(process.pid) if process.is_here else {}
        if not threads:
            self._looks.pop(process, None)
            return None
        now, before = time.monotonic(), self._looks.get(process)
        if before is not None and now - before.last > _STALE_SECONDS:
            before = None
        is_ready = any(use.is_ready for use in threads.values())
        if before is None or is_ready or threads != before.threads:
            self._looks[process] = _Looks(threads, now, now)
            return None if before is None else True
        before.num, before.last = before.num + 1, now
        is_frozen = before.num >= _LEAST_LOOKS and now - before.since >= _LEAST_SECONDS
        return False if is_frozen else None


def kill(process: ProcessName) -> bool:
    """Kills a process of this host, frozen or not; False if it is not here."""
    if not process.is_here:
        return False
    with contextlib.suppress(OSError):
        os.kill(process.pid, signal.SIGKILL)
        return True
    return False


def threads_of(pid: int) -> dict[str, ThreadUse]:
    """What each thread of a process of this host has used; empty if that cannot be read."""
    threads = {}
    with contextlib.suppress(OSError):  # It has ended.
        for task in (_PROC / str(pid) / "task").iterdir():
            # Of a thread that ends meanwhile there is nothing to know.
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, *numbers = _after_name((task / "stat").read_text())
                lines = (task / "status").read_text().splitlines()
                waits, preempted = (int(x.split()[1]) for x in lines if "ctxt_switches" in x)
                ticks = int(numbers[10]) + int(numbers[11])
                threads[task.name] = ThreadUse(state == "R", ticks, waits, preempted)
    return threads


@functools.cache
def _namespace() -> str:
    """The start of this host, and the namespace of process numbers; empty if they are unknown."""
    try:
        start = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{start} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    try:
        state, *numbers = _after_name((_PROC / str(pid) / "stat").read_text())
        return None if state in "ZX" else int(numbers[18])
    except (OSError, ValueError, IndexError):
        return None


def _after_name(stat: str) -> list[str]:
    """The fields of /proc's `stat` from the state on; a process's name may hold anything."""
    return stat.rpartition(")")[2].split()
