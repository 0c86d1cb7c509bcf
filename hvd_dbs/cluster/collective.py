"""Small exchanges between the ranks of a job, outside of TensorFlow's graph.

Every function here is collective: all ranks call it, in the same order.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_SECONDS_BETWEEN_LOOKS = 5e-5


class Pending(Protocol):
    """An exchange on its way."""

    def result(self) -> NDArray[Any]:
        """What it brings; waits for it where it is not there yet."""
        ...


class Collective(Protocol):
    """What balancing needs of a communication library."""

    rank: int
    size: int

    def start_allgather(self, row: NDArray[Any]) -> Pending:
        """Rows of all ranks, shape `[size, n]`, from one row a rank, shape `[n]`, same dtype."""
        ...

    def start_broadcast(self, row: NDArray[Any]) -> Pending:
        """Rank 0's row on all ranks; same shape and dtype on all ranks."""
        ...

    def allgather(self, row: NDArray[Any]) -> NDArray[Any]:
        """`start_allgather`, waited for."""
        return self.start_allgather(row).result()

    def broadcast(self, row: NDArray[Any]) -> NDArray[Any]:
        """`start_broadcast`, waited for."""
        return self.start_broadcast(row).result()

    def close(self) -> None:
        """Nothing more is started; what has not begun yet never does. Not collective."""
        return


@dataclass(frozen=True)
class _Done:
    """What did not have to go anywhere."""

    rows: NDArray[Any]

    def result(self) -> NDArray[Any]:
        return self.rows


class AloneCollective(Collective):
    """A job of one process."""

    rank = 0
    size = 1

    def start_allgather(self, row: NDArray[Any]) -> Pending:
        """The row itself, shape `[1, n]`."""
        return _Done(row[np.newaxis].copy())

    def start_broadcast(self, row: NDArray[Any]) -> Pending:
        """The row itself."""
        return _Done(row.copy())


class AssumedCollective(Collective):
    """An elastic job before its ranks have met: the others are taken to have what this one has.

    A rank that joins later sets itself up alone, while the others are training. What was assumed
    is checked when they meet.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def start_allgather(self, row: NDArray[Any]) -> Pending:
        """This rank's row, once for each rank, shape `[size, n]`."""
        return _Done(np.repeat(row[np.newaxis], self.size, axis=0))

    def start_broadcast(self, row: NDArray[Any]) -> Pending:
        """This rank's row."""
        return _Done(row.copy())


class ElasticCollective(Collective):
    """An elastic job: before its ranks meet what is assumed of it, then what it is.

    Attributes:
        has_met: Whether the ranks have met.
    """

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        self.has_met = False
        self._use(AssumedCollective(hvd.rank(), hvd.size()))

    def meet(self) -> None:
        """Connects the ranks that the job has now. On all ranks."""
        self._use(connect("balancer"))
        self.has_met = True

    def start_allgather(self, row: NDArray[Any]) -> Pending:
        """Rows of all ranks, shape `[size, n]`."""
        return self._current.start_allgather(row)

    def start_broadcast(self, row: NDArray[Any]) -> Pending:
        """Rank 0's row."""
        return self._current.start_broadcast(row)

    def close(self) -> None:
        """The ranks are no more what they were: what still waits for them must not meet others."""
        self._current.close()

    def _use(self, collective: Collective) -> None:
        self._current = collective
        self.rank: int = collective.rank
        self.size: int = collective.size


@dataclass(frozen=True)
class _MpiPending:
    """A request, and the buffers that have to live as long as it does."""

    request: Any
    sent: NDArray[Any]
    received: NDArray[Any]

    def result(self) -> NDArray[Any]:
        # Horovod ends MPI when a rank has failed; who waits inside of MPI then crashes.
        while not self._has_arrived():
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return self.received

    def _has_arrived(self) -> bool:
        from horovod.common.exceptions import HorovodInternalError
        from mpi4py import MPI

        if MPI.Is_finalized():
            raise HorovodInternalError(
                "MPI has ended while ranks exchanged their timings: another rank has failed."
            )
        return bool(self.request.Test())


class MpiCollective(Collective):
    """mpi4py on buffers, beside Horovod's own MPI thread, on a communicator of its own."""

    def __init__(self) -> None:
        import mpi4py

        # Horovod has initialized MPI and will finalize it.
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI

        self._communicator = MPI.COMM_WORLD.Dup()
        self.rank: int = self._communicator.Get_rank()
        self.size: int = self._communicator.Get_size()

    def start_allgather(self, row: NDArray[Any]) -> Pending:
        """Rows of all ranks, shape `[size, n]`."""
        sent, rows = np.array(row), np.empty((self.size, *row.shape), row.dtype)
        return _MpiPending(self._communicator.Iallgather(sent, rows), sent, rows)

    def start_broadcast(self, row: NDArray[Any]) -> Pending:
        """Rank 0's row."""
        buffer = np.array(row)
        return _MpiPending(self._communicator.Ibcast(buffer, root=0), buffer, buffer)


class HorovodCollective(Collective):
    """Horovod's own operations, for jobs that MPI did not start (Gloo).

    They wait for all ranks, so a thread runs them, one after the other.

    Args:
        name: What its operations are called: those of two collectives may be under way at once.
    """

    def __init__(self, name: str) -> None:
        import horovod.tensorflow as hvd

        self._allgather = partial(hvd.allgather, name=f"hvd_dbs.{name}.allgather")
        self._broadcast = partial(hvd.broadcast, root_rank=0, name=f"hvd_dbs.{name}.broadcast")
        self._functions: dict[tuple[Any, ...], Callable[[Any], Any]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hvd_dbs collective")
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()

    def start_allgather(self, row: NDArray[Any]) -> Pending:
        """Rows of all ranks, shape `[size, n]`."""
        if row.size == 0:
            return _Done(np.empty((self.size, *row.shape), row.dtype))
        return self._start(self._allgather, row[np.newaxis])

    def start_broadcast(self, row: NDArray[Any]) -> Pending:
        """Rank 0's row."""
        return self._start(self._broadcast, row)

    def _start(self, operation: Callable[[Any], Any], row: NDArray[Any]) -> Pending:
        import tensorflow as tf

        # Called eagerly, all of Horovod's operations of a kind have one name, and no two may be
        # under way at once, of ours and of the user's; in a function each has its own. A function
        # of several types would be traced again and again, with a warning; it also comes where
        # several functions are made of the same code, which a `partial` has none of.
        sent = np.array(row)
        key = (operation, sent.dtype, sent.ndim)
        if key not in self._functions:
            spec = tf.TensorSpec([None] * sent.ndim, sent.dtype)
            self._functions[key] = tf.function(partial(operation), [spec], autograph=False)
        function = self._functions[key]
        return self._thread.submit(lambda: np.array(function(sent)))

    def close(self) -> None:
        """The operation under way ends when Horovod shuts down; those behind it are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def connect(name: str = "collective") -> Collective:
    """The collective that fits how the job was started.

    Args:
        name: What its operations are called, where Horovod's own are used.

    Raises:
        RuntimeError: If Horovod is not initialized.
    """
    import horovod.tensorflow as hvd

    if not hvd.is_initialized():
        raise RuntimeError("Horovod is not initialized. Call hvd.init() first.")
    if hvd.size() == 1:
        return AloneCollective()
    return MpiCollective() if hvd.mpi_enabled() else HorovodCollective(name)


def is_elastic() -> bool:
    """Whether ranks of this job may come and go."""
    return os.environ.get("HOROVOD_ELASTIC", "0") == "1"


def connect_for_long() -> Collective:
    """The collective for what outlives a change of ranks; in an elastic job they meet later.

    Raises:
        RuntimeError: If Horovod is not initialized.
    """
    collective = connect("balancer")
    return ElasticCollective() if is_elastic() else collective


def allgather_text(collective: Collective, text: str) -> list[str]:
    """A text of every rank, by rank; for set-up and errors, not for every round."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    lengths = collective.allgather(np.array([data.size], dtype=np.int64))[:, 0]
    padded = np.zeros(max(1, int(lengths.max())), dtype=np.uint8)
    padded[: data.size] = data
    rows = collective.allgather(padded)
    return [
        bytes(row[:length]).decode() for row, length in zip(rows, lengths.tolist(), strict=True)
    ]


def raise_together(collective: Collective, error: Exception | None) -> None:
    """Raises on all ranks what any rank has met, naming the guilty ranks.

    Args:
        collective: The job.
        error: What this rank has met, or None.

    Raises:
        ValueError: With the errors of all ranks; of the type of the lowest guilty rank's error
            where that is TypeError or RuntimeError.
    """
    named = "" if error is None else f"{type(error).__name__}: {error}"
    texts = allgather_text(collective, named)
    guilty: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        if text:
            guilty.setdefault(text, []).append(rank)
    if not guilty:
        return
    if list(guilty.values()) == [list(range(collective.size))] and error is not None:
        raise error
    lines = [f"{_ranks(ranks)}: {text}" for text, ranks in guilty.items()]
    kind = next(iter(guilty)).partition(":")[0]
    kinds: dict[str, type[Exception]] = {"TypeError": TypeError, "RuntimeError": RuntimeError}
    raise kinds.get(kind, ValueError)("\n".join(lines)) from error


def require_equal(collective: Collective, arguments: dict[str, str]) -> None:
    """Checks that all ranks were given the same arguments.

    Args:
        collective: The job.
        arguments: Each argument's value as text, by name; the same names on all ranks.

    Raises:
        ValueError: On all ranks, with each differing argument's values by rank.
    """
    rows = allgather_text(collective, "\x1f".join(arguments.values()))
    values_by_rank = [row.split("\x1f") for row in rows]
    lines = []
    for i, name in enumerate(arguments):
        ranks_by_value: dict[str, list[int]] = {}
        for rank, values in enumerate(values_by_rank):
            ranks_by_value.setdefault(values[i], []).append(rank)
        if len(ranks_by_value) > 1:
            given = "; ".join(f"{value} on {_ranks(r)}" for value, r in ranks_by_value.items())
            lines.append(f"{name} differs between ranks: {given}.")
    if lines:
        raise ValueError("\n".join([*lines, "Give every rank the same arguments."]))


def hostnames(collective: Collective) -> list[str]:
    """The host of every rank, by rank."""
    return allgather_text(collective, socket.gethostname())


def own_slot() -> tuple[str, int]:
    """The host that this process runs on, by the launcher's name for it, and its number there."""
    import horovod.tensorflow as hvd

    return os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname(), hvd.local_rank()


def _ranks(ranks: Sequence[int], most: int = 8) -> str:
    text = ", ".join(str(rank) for rank in ranks[:most]) + (", ..." if len(ranks) > most else "")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
