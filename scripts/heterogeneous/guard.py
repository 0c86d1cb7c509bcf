"""What cleans up after a job even when its supervisor is killed."""

import contextlib
import os
import signal
from collections.abc import Callable


class Guard:
    """A process that cleans up when this one is killed without a chance to do so.

    It waits for the end of a pipe whose other end only this process holds.
    """

    def __init__(self, clean_up: Callable[[int | None], None]) -> None:
        reader, self._writer = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(reader)
            return
        status = 1
        try:
            os.close(self._writer)
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            with open(reader, encoding="ascii") as pipe:
                words = pipe.read().split()
            if words[-1:] != ["done"]:
                clean_up(int(words[0]) if words else None)
            status = 0
        finally:
            os._exit(status)

    def tell_launcher(self, pid: int) -> None:
        """The launcher is this process, which `clean_up` is to end."""
        self._write(f"{pid}\n")

    def dismiss(self) -> None:
        """Nothing is left to clean up."""
        self._write("done\n")
        os.close(self._writer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _write(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guard; the job goes on
            os.write(self._writer, text.encode())
