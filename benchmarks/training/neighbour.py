"""Somebody else's busy process on a rank's core, which starts and stops when the job says so.

It must not be a child of a rank, whose quota and core it would inherit: the benchmark starts it
and the job tells it what to do through a named pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

_BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


class Neighbour:
    """The process and the pipe that it listens to; to be used in a `with` statement.

    Args:
        pipe: Where to make the pipe.
    """

    def __init__(self, pipe: Path) -> None:
        self._path = pipe
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._listen, name="neighbour", daemon=True)

    def __enter__(self) -> Neighbour:
        os.mkfifo(self._path)
        # Open for writing as well: the end of one writer is not the end.
        self._pipe = os.open(self._path, os.O_RDWR)
        self._process = subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.DEVNULL)
        self._process.send_signal(signal.SIGSTOP)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.write(self._pipe, b"end\n")
        self._thread.join(timeout=5)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        os.close(self._pipe)
        self._path.unlink(missing_ok=True)

    def _listen(self) -> None:
        left = b""
        while True:
            *lines, left = (left + os.read(self._pipe, 4096)).split(b"\n")
            for line in lines:
                if line == b"end":
                    return
                self._obey(line.decode())

    def _obey(self, line: str) -> None:
        if self._process is None:
            return
        verb, _, core = line.partition(" ")
        with contextlib.suppress(OSError):
            if verb == "run":
                os.sched_setaffinity(self._process.pid, {int(core)})
                self._process.send_signal(signal.SIGCONT)
            elif verb == "pause":
                self._process.send_signal(signal.SIGSTOP)


class RemoteNeighbour:
    """The job's side of the pipe; every rank has one, rank 0's does something.

    Args:
        pipe: Where the pipe is.
        core: The core to be busy on.
        is_leader: Whether this is rank 0.
    """

    def __init__(self, pipe: Path, core: int, is_leader: bool) -> None:
        self._pipe, self._core, self._is_leader = pipe, core, is_leader

    def run(self) -> None:
        """Begins to be busy."""
        self._tell(f"run {self._core}\n")

    def pause(self) -> None:
        """Stops being busy."""
        self._tell("pause\n")

    def _tell(self, line: str) -> None:
        if self._is_leader:
            descriptor = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
