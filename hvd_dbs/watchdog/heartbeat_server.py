"""Rank 0's end of the heartbeats."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from hvd_dbs.watchdog.contacts import Contact, Endpoint, address_for
from hvd_dbs.watchdog.findings import Action, Finding
from hvd_dbs.watchdog.heartbeat import Answer, Heartbeat
from hvd_dbs.watchdog.heartbeat_thread import HeartbeatThread
from hvd_dbs.watchdog.packets import Channel, KeyPair, claimed_rank
from hvd_dbs.watchdog.stall_detection import StallDetector

_LOGGER = logging.getLogger(__name__)

_MOST_NEW_KEYS = 20
"""Keys that are computed in a period, of some 3 ms each."""
_MOST_LOOKS = 64
"""Processes that a rank is asked to look at."""


class HeartbeatServer(HeartbeatThread):
    """Rank 0's thread: receives heartbeats, judges, and logs who keeps the job waiting.

    Args:
        contacts: Those of all ranks.
        keys: This process's.
        detector: What judges.
        sample: Gives rank 0's own heartbeat; the last one has left training.
        end_process: What ends this process.

    Attributes:
        endpoint: Where it listens.

    Raises:
        OSError: If the address of the job's interface cannot be used.
    """

    def __init__(
        self,
        contacts: Sequence[Contact],
        keys: KeyPair,
        detector: StallDetector,
        sample: Callable[[], Heartbeat],
        end_process: Callable[[int], Any] = os._exit,
    ) -> None:
        processes = detector.processes
        super().__init__("hvd_dbs watchdog", sample, processes, detector.limits.period, end_process)
        try:
            self._socket.bind((address_for(contacts), 0))
        except OSError:
            self._socket.close()
            raise
        address, port = self._socket.getsockname()
        self.endpoint = Endpoint(address, port, secrets.token_hex(16))
        self._publics = [contact.public for contact in contacts]
        self._keys = keys
        self._detector = detector
        self._channels: dict[int, Channel] = {}
        self._senders: dict[int, Any] = {}
        self._to_end: dict[int, int] = {}
        self._silent_by_place: dict[tuple[str, str], list[int]] = {}
        self._num_new_keys = 0
        self._is_flooded = False

    def _do_period(self, beat: Heartbeat, end: float) -> bool:
        self._num_new_keys = 0
        has_read_all = self._receive(end)
        now = time.monotonic()
        if not has_read_all:
            self._detector.excuse(range(len(self._processes)), now)
            if not self._is_flooded:
                _LOGGER.warning(
                    "so many foreign datagrams arrive on UDP port %d that heartbeats are lost: "
                    "frozen ranks cannot be named.",
                    self.endpoint.port,
                )
            self._is_flooded = True
        running, frozen = self._look_at(*self._to_look_at(0))
        self._report(self._detector.note(replace(beat, running=running, frozen=frozen), now))
        self._report(self._detector.judge(now))
        self._silent_by_place = {}
        for rank in self._detector.to_look_at:
            self._silent_by_place.setdefault(self._processes[rank].place, []).append(rank)
        return True

    def _accept(self, data: bytes, sender: Any) -> bool:
        rank, now = claimed_rank(data), time.monotonic()
        if rank is None or not 0 < rank < len(self._processes):
            return False
        channel = self._channel(rank)
        if channel is None:
            self._detector.excuse([rank], now)
            return False
        fields = channel.open(data)
        if fields is None:
            return False
        beat = Heartbeat.from_fields(fields)
        place = self._processes[rank].place
        if beat.rank != rank or not self._are_at(place, (*beat.running, *beat.frozen)):
            return False
        self._senders[rank] = sender
        self._report(self._detector.note(beat, now))
        look_at, to_kill = self._to_look_at(rank)
        end = self._to_end.get(rank, -1)
        self._send(rank, Answer(channel.last_received, look_at, to_kill, end))
        return True

    def _channel(self, rank: int) -> Channel | None:
        """Computed with the rank's first packet; None: too many were in this period."""
        public = self._publics[rank]
        if rank not in self._channels:
            if not self._keys.knows(public):
                if self._num_new_keys == _MOST_NEW_KEYS:
                    return None
                self._num_new_keys += 1
            shared = self._keys.shared(public)
            training = self.endpoint.training
            self._channels[rank] = Channel.of_pair(shared, training, rank, is_rank_0=True)
        return self._channels[rank]

    def _send(self, rank: int, answer: Answer) -> None:
        try:
            self._socket.sendto(self._channels[rank].pack(asdict(answer)), self._senders[rank])
        except OSError as error:
            _LOGGER.debug("no answer to rank %d: %r", rank, error)

    def _say_goodbye(self, beat: Heartbeat) -> None:
        self._receive_what_is_there()  # Answers to old packets are taken for replays.
        for rank in self._senders:
            for _ in range(2):  # One may be lost.
                self._send(rank, Answer(self._channels[rank].last_received, left=beat.doing))

    def _to_look_at(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Silent ranks of this rank's host, and those of them to be killed if they are frozen."""
        ranks = self._silent_by_place.get(self._processes[rank].place, [])[:_MOST_LOOKS]
        return tuple(ranks), tuple(other for other in ranks if self._detector.to_look_at[other])

    def _are_at(self, place: tuple[str, str], ranks: Iterable[int]) -> bool:
        size = len(self._processes)
        return all(0 <= rank < size and self._processes[rank].place == place for rank in ranks)

    def _report(self, findings: list[Finding]) -> None:
        for finding in findings:
            level = logging.INFO if finding.is_over else logging.WARNING
            _LOGGER.log(level, "%s", finding.text)
            if finding.action is Action.END_RANK and finding.rank != 0:
                self._to_end[finding.rank] = finding.progress
            elif finding.action is not Action.NONE:
                self._end_process(1)
