"""Which processes belong to the job, and which of them are which rank.

The launcher gets a token in its environment. mpirun and horovodrun hand their environment on to
ranks on this machine, so everything that the job started carries it, also what was reparented
on the way. A rank is told by the variable that its launcher sets.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

TOKEN_VARIABLE = "HVD_DBS_HETEROGENEOUS"
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMIX_RANK", "PMI_RANK")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "PMI_SIZE")


@dataclass(frozen=True)
class JobProcess:
    """A process of the job.

    Attributes:
        pid: Its process id.
        rank: The rank it belongs to, None for launchers.
        size: How many ranks its launcher says there are, None if it does not say.
    """

    pid: int
    rank: int | None
    size: int | None


class ProcessTable:
    """Finds the living processes of one job."""

    def __init__(self, token: str) -> None:
        """Looks for processes that carry `token`; to be made before the job starts."""
        self._entry = f"{TOKEN_VARIABLE}={token}".encode()
        # What is alive now is not of the job, whatever its environment says: what is found here
        # may be killed. Nor can a process get the token later: fork and exec hand environments on.
        self._foreign = _living()

    def scan(self) -> list[JobProcess]:
        """All processes of the job that live now, zombies left out."""
        pids = _living()
        self._foreign &= pids
        found = []
        for pid in sorted(pids - self._foreign):
            entries = _read_environment(pid)
            if self._entry in entries:
                variables = dict(_split(entry) for entry in entries)
                rank = _first_number(variables, RANK_VARIABLES)
                size = _first_number(variables, SIZE_VARIABLES)
                is_elastic = variables.get("HOROVOD_ELASTIC") == "1"  # then the size may change
                found.append(JobProcess(pid, rank, None if is_elastic else size))
            elif entries != [b""]:  # an empty one is a process on its way out or in
                self._foreign.add(pid)
        return found


def _living() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _read_environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except PermissionError:
        return [b"unreadable"]
    except OSError:
        return [b""]


def _split(entry: bytes) -> tuple[str, str]:
    name, _, value = entry.decode(errors="replace").partition("=")
    return name, value


def _first_number(variables: dict[str, str], names: Iterable[str]) -> int | None:
    for name in names:
        if variables.get(name, "").isdecimal():
            return int(variables[name])
    return None


def pin(pid: int, core: int) -> None:
    """Binds all threads of a process, and so those they will start, to one core."""
    pinned: set[str] = set()
    while True:
        try:
            threads = set(os.listdir(f"/proc/{pid}/task")) - pinned
        except OSError:
            return
        if not threads:
            return
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), {core})
        pinned |= threads


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signals all of them; those that have ended meanwhile are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether a process has this id now."""
    return os.path.exists(f"/proc/{pid}")


def new_token() -> str:
    """A value that no other run on this machine has."""
    return f"{os.getpid()}-{time.time_ns()}"
