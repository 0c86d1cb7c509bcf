"""Ends a process of this host that cannot end itself any more."""

from __future__ import annotations

import os
import socket

import psutil

_SEPARATOR = "/"


def own_process() -> str:
    """What names this process on all hosts: its host, its number, and when it was started.

    Numbers of processes are used again, and containers may share a host's name but not its
    processes.
    """
    started = psutil.Process().create_time()
    return _SEPARATOR.join([socket.gethostname(), str(os.getpid()), f"{started:.2f}"])


def host_of(process: str) -> str:
    """The host of such a name."""
    return process.partition(_SEPARATOR)[0]


def end_if_here(process: str) -> bool:
    """Kills a process by such a name, frozen or not; False if it is not one of this host's."""
    host, *numbers = process.split(_SEPARATOR)
    if host != socket.gethostname() or len(numbers) != 2:
        return False
    pid, started = numbers
    try:
        found = psutil.Process(int(pid))
        if abs(found.create_time() - float(started)) > 0.1:
            return False
        found.kill()
    except (ValueError, psutil.Error):
        return False
    return True
