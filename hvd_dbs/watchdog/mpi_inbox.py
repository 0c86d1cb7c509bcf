"""What a rank that fails sends the others over MPI, which ends with it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

_MOST_BYTES = 2000
"""Of a text. Less than MPI's eager limits (4 KiB in shared memory): it arrives in one piece."""
_SLEEP = 1e-3


class MpiInbox:
    """A receive that is posted before anything fails, and read after.

    Horovod's own thread calls MPI all the time, and MPI fills the buffer meanwhile. So the text is
    there though this rank's threads wait, and still is when Horovod has ended MPI.

    Args:
        communicator: One of mpi4py's on which nobody else sends to any rank.
    """

    def __init__(self, communicator: Any) -> None:
        from mpi4py import MPI

        self._communicator = communicator
        self._buffer = np.zeros(_MOST_BYTES, dtype=np.uint8)
        self._request = communicator.Irecv(self._buffer, source=MPI.ANY_SOURCE)
        self._sent: tuple[Any, list[Any]] | None = None  # Kept while MPI may read it.

    @property
    def text(self) -> str:
        """What has arrived first, or ""."""
        return self._buffer.tobytes().rstrip(b"\0").decode(errors="ignore")

    def send(self, text: str, limit: float) -> None:
        """Sends a text to all other ranks, once, and waits until they have it. Not collective.

        Args:
            text: Of which the first 2000 bytes are sent.
            limit: Seconds for which it waits.
        """
        from mpi4py import MPI

        if self._sent is not None or MPI.Is_finalized():
            return
        # File names in errors need not be valid UTF-8.
        encoded = text.encode(errors="backslashreplace")
        data = np.frombuffer(encoded[:_MOST_BYTES], dtype=np.uint8)
        own, size = self._communicator.Get_rank(), self._communicator.Get_size()
        # Synchronous: what was sent otherwise could be lost when this rank ends MPI.
        others = (rank for rank in range(size) if rank != own)
        requests = [self._communicator.Issend(data, dest=rank) for rank in others]
        self._sent = (data, requests)
        end = time.monotonic() + limit
        while not MPI.Request.Testall(requests) and time.monotonic() < end:
            time.sleep(_SLEEP)

    def close(self) -> None:
        """Takes the receive back: nothing may be under way when MPI ends."""
        if self._request is not None:
            self._request.Cancel()
            self._request.Free()
            self._request = None
