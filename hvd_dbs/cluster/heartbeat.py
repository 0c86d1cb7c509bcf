"""Signs of life from every rank to rank 0, beside the collectives that may be blocked.

Datagrams: nothing to connect, nothing that blocks, and a lost one does not matter. They hold JSON
and a secret that rank 0 makes for each training; whatever else arrives is ignored.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil

from hvd_dbs.cluster.frozen_process import end_if_here, host_of, own_process
from hvd_dbs.cluster.standstill import ENDED, Finding, SignOfLife, Standstill

_LOGGER = logging.getLogger(__name__)

_MOST_BYTES = 4096
_INTERFACE_VARIABLES = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Meeting:
    """Where rank 0 listens: what the others are told.

    Attributes:
        addresses: IPv4 addresses of its host, the likeliest first.
        port: UDP port.
        secret: What every datagram has to hold.
        process: Rank 0's process, for who has to end it.
    """

    addresses: list[str]
    port: int
    secret: str
    process: str = ""

    def to_json(self) -> str:
        """As text for the other ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Meeting:
        """From that text."""
        return cls(**json.loads(text))


class Listener:
    """Rank 0's thread: hears the others, judges, and says in the log who keeps the job waiting.

    Args:
        standstill: What judges.
        own_sign: Rank 0's own sign of life.
        one_host: Whether all ranks are on this host; else all its interfaces are listened to, or
            the one that HOROVOD_GLOO_IFACE or NCCL_SOCKET_IFNAME names.
        end_process: What ends this process.
    """

    def __init__(
        self,
        standstill: Standstill,
        own_sign: Callable[[], SignOfLife | None],
        one_host: bool,
        end_process: Callable[[int], Any] = os._exit,
    ) -> None:
        addresses = ["127.0.0.1"] if one_host else _addresses()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((addresses[0] if len(addresses) == 1 else "", 0))
        self.meeting = Meeting(
            addresses, self._socket.getsockname()[1], secrets.token_hex(8), own_process()
        )
        self._standstill = standstill
        self._own_sign = own_sign
        self._end_process = end_process
        self._to_end: set[int] = set()
        self._to_kill: set[str] = set()
        self._next_look = 0.0
        self._thread = _Repeated("hvd_dbs watchdog", self._listen)

    def start(self) -> None:
        """Begins to listen."""
        self._socket.settimeout(self._standstill.period)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._thread.stop()
        self._socket.close()

    def _listen(self) -> bool:
        """One datagram or none, and once a period a look at everybody; false when all is over."""
        try:
            self._say(self._heard())
        except TimeoutError:
            pass
        except (OSError, TypeError, KeyError) as error:
            _LOGGER.debug("a datagram is ignored: %r", error)
        now = time.monotonic()
        if now < self._next_look:
            return True
        self._next_look = now + self._standstill.period
        sign = self._own_sign()
        if sign is None:
            return False
        self._say(self._standstill.note(sign, now))
        self._say(self._standstill.judge(now))
        return True

    def _heard(self) -> list[Finding]:
        """Takes up a datagram and answers it."""
        data, sender = self._socket.recvfrom(_MOST_BYTES)
        message = _decoded(data, self.meeting.secret)
        if message is None:
            return []
        sign = SignOfLife(**message["sign"])
        neighbours = [one for one in self._to_kill if host_of(one) == host_of(sign.process)]
        end = sign.rank in self._to_end
        answer = {"secret": self.meeting.secret, "end": end, "kill": neighbours}
        self._socket.sendto(json.dumps(answer).encode(), sender)
        return self._standstill.note(sign, time.monotonic())

    def _say(self, findings: list[Finding]) -> None:
        for finding in findings:
            level = logging.INFO if finding.is_over else logging.WARNING
            _LOGGER.log(level, "%s", finding.text)
            if finding.abort:
                self._end(finding)

    def _end(self, finding: Finding) -> None:
        self._to_end.add(finding.rank)
        if finding.rank == 0:
            self._end_process(1)
        elif finding.silent and not end_if_here(finding.process):
            # Who is silent cannot end itself, but another rank on its host can do that.
            host = host_of(finding.process)
            if host and self._standstill.ranks_on(lambda other: host_of(other) == host):
                self._to_kill.add(finding.process)
            else:  # Without rank 0 the launcher ends the job.
                self._end_process(1)


class Beater:
    """Another rank's thread: says what it is doing, every period.

    Args:
        meeting: Where rank 0 listens.
        sign: This rank's sign of life; None once it is not training any more.
        period: Seconds between two signs.
        patience: Seconds without an answer after which this rank says that rank 0 is silent.
        abort_seconds: Seconds after which rank 0 is killed by a rank on its host; where there is
            none, other ranks end themselves after twice as long. None: never.
        end_process: What ends this process, if rank 0 says so.
    """

    def __init__(
        self,
        meeting: Meeting,
        sign: Callable[[], SignOfLife | None],
        period: float,
        patience: float,
        abort_seconds: float | None = None,
        end_process: Callable[[int], Any] = os._exit,
    ) -> None:
        self._abort_seconds = float("inf") if abort_seconds is None else abort_seconds
        self._meeting = meeting
        self._sign = sign
        self._period = period
        self._patience = patience
        self._end_process = end_process
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._addresses = list(meeting.addresses)
        self._answered = time.monotonic()
        self._warned = False
        self._last: SignOfLife | None = None
        self._thread = _Repeated("hvd_dbs sign of life", self._beat)

    def start(self) -> None:
        """Begins to give signs of life."""
        self._socket.settimeout(self._period)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, and says that this rank is not training any more."""
        self._thread.stop()
        self._say_goodbye()
        self._socket.close()

    def _beat(self) -> bool:
        sign = self._sign()
        if sign is None:  # A fit that has ended by an error.
            self._say_goodbye()
            return False
        begin, self._last = time.monotonic(), sign
        self._send(sign)
        try:
            data, sender = self._socket.recvfrom(_MOST_BYTES)
            answer = _decoded(data, self._meeting.secret)
            if answer is not None:
                self._addresses = [sender[0]]
                self._answered, self._warned = time.monotonic(), False
                for process in answer["kill"]:
                    end_if_here(process)
                if answer["end"]:
                    _LOGGER.error("rank 0 ends this rank: it has made no progress for too long.")
                    self._end_process(1)
        except (TimeoutError, OSError):
            self._addresses = list(self._meeting.addresses)
        self._judge_rank_0(time.monotonic() - self._answered, sign.rank)
        self._thread.wait(self._period - (time.monotonic() - begin))
        return True

    def _judge_rank_0(self, silent: float, rank: int) -> None:
        text = (
            f"rank 0 ({', '.join(self._meeting.addresses)}, port {self._meeting.port}) has not "
            f"answered rank {rank} for {silent:.0f} s: frozen, dead or out of reach."
        )
        if silent > self._patience and not self._warned:
            self._warned = True
            _LOGGER.warning("%s", text)
        if silent > self._abort_seconds and end_if_here(self._meeting.process):
            _LOGGER.error("%s It is ended.", text)
        elif silent > 2 * self._abort_seconds:
            _LOGGER.error("%s Rank %d ends for that.", text, rank)
            self._end_process(1)

    def _send(self, sign: SignOfLife) -> None:
        message = json.dumps({"secret": self._meeting.secret, "sign": asdict(sign)})
        for address in self._addresses:
            try:
                self._socket.sendto(message.encode(), (address, self._meeting.port))
            except OSError as error:  # That interface leads nowhere; another one may.
                _LOGGER.debug("no sign of life to %s: %r", address, error)

    def _say_goodbye(self) -> None:
        if self._last is not None:
            self._send(replace(self._last, doing=ENDED))
            self._last = None


class _Repeated:
    """A thread that does something again and again until it returns false or is stopped."""

    def __init__(self, name: str, action: Callable[[], bool]) -> None:
        self._ended = threading.Event()
        self._action = action
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def wait(self, seconds: float) -> None:
        self._ended.wait(max(seconds, 0.0))

    def _run(self) -> None:
        try:
            while not self._ended.is_set() and self._action():
                pass
        except Exception as error:  # Watching never ends the training.
            if not self._ended.is_set():
                _LOGGER.warning("%s has ended: %r", self._thread.name, error)


def _decoded(data: bytes, secret: str) -> dict[str, Any] | None:
    """A datagram of this training; None if it is something else."""
    try:
        message = json.loads(data)
    except ValueError:
        return None
    if not isinstance(message, dict) or message.get("secret") != secret:
        return None
    return message


def _addresses() -> list[str]:
    """This host's IPv4 addresses; only that of the interface that the job was told to use."""
    found = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    for variable in _INTERFACE_VARIABLES:
        for name in os.environ.get(variable, "").split(","):
            if found.get(name):
                return found[name]
    everywhere = [address for addresses in found.values() for address in addresses]
    outside = [address for address in everywhere if not address.startswith("127.")]
    return outside or ["127.0.0.1"]
