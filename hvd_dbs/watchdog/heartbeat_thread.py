"""What the threads have in common that carry heartbeats from every rank to rank 0.

Datagrams, beside the collectives: nothing to connect, nothing that blocks, and a lost one does not
matter. Other ranks send to rank 0's host, to a port that the system chooses; rank 0 answers each
packet.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hvd_dbs.watchdog.heartbeat import LEFT, Heartbeat
from hvd_dbs.watchdog.packets import MOST_BYTES
from hvd_dbs.watchdog.process_kill import ProcessName, ProcessObserver, kill

_LOGGER = logging.getLogger(__name__)

_MOST_REJECTED = 4000
"""Packets of others that are looked at in a period: some 50 ms of work."""
_SLICE = 0.05


class HeartbeatThread:
    """A thread with a socket that does the same each period until it stops or has nothing to do.

    Args:
        name: Of the thread.
        sample: Gives this rank's heartbeat.
        processes: The process of each rank.
        period: Seconds.
        end_process: What ends this process.
    """

    def __init__(
        self,
        name: str,
        sample: Callable[[], Heartbeat],
        processes: Sequence[ProcessName],
        period: float,
        end_process: Callable[[int], Any],
    ) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sample = sample
        self._processes = processes
        self._period = period
        self._end_process = end_process
        self._observer = ProcessObserver()
        self._last: Heartbeat | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, which lets the others know, and closes the socket."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._last = beat = self._sample()
                if beat.has_left:
                    break
                if not self._do_period(beat, time.monotonic() + self._period):
                    return
            if self._last is not None:
                beat = self._last
                self._say_goodbye(beat if beat.has_left else replace(beat, doing=LEFT))
        except Exception as error:  # Watching never ends the training.
            _LOGGER.warning("%s has ended: %r", self._thread.name, error)
        finally:
            self._socket.close()

    def _do_period(self, beat: Heartbeat, end: float) -> bool:
        """A period up to this time; false if it was the last one."""
        raise NotImplementedError

    def _say_goodbye(self, beat: Heartbeat) -> None:
        raise NotImplementedError

    def _accept(self, data: bytes, sender: Any) -> bool:
        """Takes up what has arrived; false if it is not of this training."""
        raise NotImplementedError

    def _receive(self, end: float) -> bool:
        """Takes up what arrives until a time; false if it was so much that some was not read."""
        num_rejected = 0
        while (left := end - time.monotonic()) > 0 and not self._stopped.is_set():
            self._socket.settimeout(min(left, _SLICE))
            try:
                data, sender = self._socket.recvfrom(MOST_BYTES + 1)
            except TimeoutError:
                continue
            except OSError:  # Nobody listens there any more, or not yet.
                self._stopped.wait(min(left, _SLICE))
                continue
            try:
                num_rejected += not self._accept(data, sender)
            except (TypeError, ValueError) as error:  # Such as that of another version.
                _LOGGER.debug("a packet is rejected: %r", error)
                num_rejected += 1
            if num_rejected == _MOST_REJECTED:
                self._stopped.wait(end - time.monotonic())
                return False
        return True

    def _receive_what_is_there(self) -> None:
        """Takes up what has arrived, without waiting for more."""
        self._socket.setblocking(False)
        for _ in range(_MOST_REJECTED):
            try:
                self._accept(*self._socket.recvfrom(MOST_BYTES + 1))
            except (BlockingIOError, ConnectionError):
                return
            except (TypeError, ValueError) as error:  # Such as that of another version.
                _LOGGER.debug("a packet is rejected: %r", error)

    def _look_at(
        self, ranks: Iterable[int], to_kill: Iterable[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ranks of this host whose processes run, and those whose do not, which are killed."""
        running: list[int] = []
        frozen: list[int] = []
        for rank in ranks:
            process = self._processes[rank]
            has_run = self._observer.has_run(process)
            if has_run is None:
                continue
            (running if has_run else frozen).append(rank)
            if not has_run and rank in to_kill and kill(process):
                _LOGGER.error(
                    "rank %d (%s) is killed: its process does not run, and others wait for it.",
                    rank,
                    process,
                )
        return tuple(running), tuple(frozen)
