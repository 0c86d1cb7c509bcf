"""How fast the links between the hosts of a job are, from what the job itself sends over them."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.comm.tcp_info import Connection, TcpInfo, open_connections, plain_address

ROW_SIZE = 6
"""Floats that a rank gives rank 0: host, bytes a second and round trip of two links."""

_READS_REMEMBERED = 8
_LEAST_BYTES = 1e6
"""Connections that have sent less lately show how long messages take, not what a link carries."""
_LEAST_SECONDS_BETWEEN = 2.0
"""A read costs microseconds for each open file; ranks that decide after each step need no more."""
_MOST_LINKS = 64
_TICK = 0.004
"""The kernel counts times of sending in these seconds."""


@dataclass(frozen=True)
class Link:
    """What one host sends to another.

    Attributes:
        source: Name of the host that sends.
        target: Name of the host that receives.
        bytes_per_second: Of the fastest connection between them.
        round_trip_seconds: Of a packet and its answer, without the time spent in queues.
    """

    source: str
    target: str
    bytes_per_second: float
    round_trip_seconds: float

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Link:
        """From JSON data; raises ValueError, LookupError or TypeError if it is something else."""
        source, target = plain["source"], plain["target"]
        rate, round_trip = float(plain["bytes_per_second"]), plain["round_trip_seconds"]
        if not (isinstance(source, str) and isinstance(target, str) and 0 < rate < math.inf):
            raise ValueError("a link needs the names of two hosts and a rate.")
        return cls(source, target, rate, math.nan if round_trip is None else float(round_trip))


@dataclass
class _History:
    """The last reads of a connection, the sum of all before them first."""

    totals: deque[tuple[int, float]] = field(
        default_factory=lambda: deque([(0, 0.0)], maxlen=_READS_REMEMBERED + 1)
    )
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_READS_REMEMBERED))
    round_trip_seconds: float = math.nan

    def add(self, info: TcpInfo) -> None:
        self.totals.append((info.bytes_acked, info.sending_seconds))
        self.rates.append(info.delivery_rate)
        self.round_trip_seconds = info.round_trip_seconds

    @property
    def bytes_per_second(self) -> float:
        """NaN where too little was sent lately."""
        (bytes_before, seconds_before), (bytes_now, seconds_now) = self.totals[0], self.totals[-1]
        num_bytes = bytes_now - bytes_before
        if num_bytes < _LEAST_BYTES:
            return math.nan
        # Short messages make it too small: while one is under way the link is all but idle. The
        # kernel's own rate is right where there was always more to send, and else that of a burst.
        mean = num_bytes / (max(seconds_now - seconds_before, 0.0) + _TICK)
        known = [rate for rate in self.rates if math.isfinite(rate)]
        return max(mean, float(np.median(known)) if known else 0.0)


class LinkMeter:
    """Watches the connections of this process to the other hosts of the job.

    Nothing is sent for it. Where ranks exchange their gradients by other means than TCP, such as
    InfiniBand or shared memory, it sees nothing and claims nothing.

    Args:
        read: Gives the open connections.
        clock: Seconds.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Connection]] = open_connections,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self.change_hosts((), (), 0)

    def change_hosts(
        self, hosts: Sequence[str], addresses: Sequence[Sequence[str]], rank: int
    ) -> None:
        """The job has these ranks now.

        Args:
            hosts: Names of the ranks' hosts, by rank.
            addresses: Those of the ranks' hosts, by rank.
            rank: This rank.
        """
        numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
        known = {
            (plain_address(address), numbers[host])
            for host, of in zip(hosts, addresses, strict=True)
            for address in of
        }
        own = numbers[hosts[rank]] if hosts else 0
        # An address that two hosts have, such as that of a bridge, says nothing.
        owners = Counter(address for address, _ in known)
        self._hosts = {
            address: number
            for address, number in known
            if address and number != own and owners[address] == 1
        }
        self._histories: dict[tuple[int, str, int], tuple[int, _History]] = {}
        self._next_read = -math.inf

    def row(self) -> NDArray[np.float64]:
        """This rank's slowest and its fastest link to another host, shape `[6]`; NaN: unknown.

        A host goes by its number among the distinct hosts of the job, in the order of ranks.
        """
        row = np.full((2, 3), np.nan)
        if self._hosts and self._clock() >= self._next_read:
            self._next_read = self._clock() + _LEAST_SECONDS_BETWEEN
            self._look()
        best: dict[int, tuple[float, float]] = {}
        for host, history in self._histories.values():
            rate = history.bytes_per_second
            if math.isfinite(rate) and rate > best.get(host, (0.0, 0.0))[0]:
                best[host] = rate, history.round_trip_seconds
        if best:
            by_rate = sorted(best, key=lambda host: best[host][0])
            for i, host in enumerate((by_rate[0], by_rate[-1])):
                row[i] = host, *best[host]
        return row.ravel()

    def _look(self) -> None:
        before, self._histories = self._histories, {}
        for connection in self._read():
            host = self._hosts.get(connection.peer)
            if host is None:
                continue
            _, history = before.get(connection.key, (host, _History()))
            if connection.info.bytes_acked < history.totals[-1][0]:
                history = _History()  # Another connection with the same number and peer.
            history.add(connection.info)
            self._histories[connection.key] = host, history


def links_of(rows: NDArray[np.float64], hosts: Sequence[str]) -> tuple[Link, ...]:
    """The links that the ranks have seen, the slowest first; of very many the slowest, and some.

    Args:
        rows: Of all ranks, by rank, shape `[size, 6]`.
        hosts: Names of the ranks' hosts, by rank.
    """
    names = list(dict.fromkeys(hosts))
    numbers = {name: number for number, name in enumerate(names)}
    links = rows.reshape(-1, 3)
    # Floats of other processes.
    host, rate = links[:, 0], links[:, 1]
    good = (host >= 0) & (host < len(names)) & (host == np.floor(host)) & (rate > 0)
    good &= np.isfinite(rate)
    if not good.any():
        return ()
    sources = np.repeat([numbers[name] for name in hosts], len(links) // len(hosts))[good]
    targets, rates, round_trips = links[good].T
    pairs = sources * len(names) + targets.astype(np.int64)
    # Of connections between the same hosts the fastest.
    by_pair = np.lexsort((rates, pairs))
    best = by_pair[np.append(np.diff(pairs[by_pair]) > 0, True)]
    best = best[np.argsort(rates[best], kind="stable")]
    if len(best) > _MOST_LINKS:
        slowest = _MOST_LINKS // 2
        others = np.linspace(slowest, len(best) - 1, _MOST_LINKS - slowest).astype(int)
        best = best[np.append(np.arange(slowest), others)]
    return tuple(
        Link(names[sources[i]], names[int(targets[i])], float(rates[i]), float(round_trips[i]))
        for i in best.tolist()
    )
