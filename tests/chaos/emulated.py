"""The same job on emulated hosts: one for the launcher, and some that come, go and are cut off."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.job import Cluster
from tests.chaos.schedule import COME_BACK, CUT, CUT_FOR_5_S, JOURNAL, POWER_OFF, SLOW_LINK
from tests.hosts import Cluster as Hosts
from tests.hosts import Host

_LAUNCHER = "head"
_NAMES = tuple(f"h{number}" for number in range(1, 8))
_STATE = Path("/tmp/state")
"""Each host has this folder for itself."""

_SSH_OPTIONS = ("ServerAliveInterval 5", "ServerAliveCountMax 3", "ConnectTimeout 10")
"""As docs/elastic.md asks for: without them the launcher never notices that a host is cut off."""

_SLOW_BITS = 2e6
_SECONDS_TO_END = 90.0
"""How long a rank that is cut off may take to end: Gloo's timeout, then that of the launcher."""


@dataclass
class EmulatedHosts(Cluster):
    """Hosts of their own, one rank each."""

    unused: list[str] = field(default_factory=lambda: list(_NAMES))
    interface: str = "eth0"
    # A host that comes back is used again after seconds; one that does not, less and less.
    launcher_options: tuple[str, ...] = ("--blacklist-cooldown-range", "2", "300")
    options: tuple[str, ...] = ("--state", str(_STATE))

    def __enter__(self) -> EmulatedHosts:
        hosts = [Host(name) for name in (_LAUNCHER, *_NAMES)]
        self._hosts = Hosts(hosts, [self.folder], _SSH_OPTIONS)
        self._hosts.start(_LAUNCHER)
        return self

    def __exit__(self, *_: object) -> None:
        self._hosts.close()

    def add(self, count: int = 1) -> list[str]:
        self._hosts.start(*self.unused[:count])
        return super().add(count)

    def launched(self, words: list[str]) -> list[str]:
        return self._hosts.command(_LAUNCHER, ["env", "HOME=/run/home", *words])

    def journals(self) -> list[Path]:
        paths = [
            self._hosts.files_of(name) / _STATE.relative_to("/") / JOURNAL
            for name in _NAMES
            if self._hosts.is_running(name)
        ]
        return [path for path in paths if path.exists()]

    def left_over(self) -> list[str]:
        """Ranks that live on, on hosts that were cut off: each wait of theirs has a limit."""
        end = time.monotonic() + _SECONDS_TO_END
        while (left := self._trainings()) and time.monotonic() < end:
            time.sleep(0.2)
        return [f"process {process} has not ended with its job" for process in left]

    def send(self, process: str, number: int) -> None:
        host, _, pid = process.rpartition("-")
        if self._hosts.is_running(host):
            self._hosts.kill(host, int(pid), number)

    def is_alive(self, process: str) -> bool:
        host, _, pid = process.rpartition("-")
        return self._hosts.is_running(host) and int(pid) in self._hosts.processes(host)

    def strike(self, kind: str, host: str, over: threading.Event) -> None:
        with contextlib.suppress(RuntimeError, ValueError):  # Another fault has ended it.
            self._strike(kind, host, over)

    def _strike(self, kind: str, host: str, over: threading.Event) -> None:
        if kind in (CUT, CUT_FOR_5_S):
            self._hosts.cut(host)
            if kind == CUT_FOR_5_S:
                over.wait(5.0)
                self._hosts.heal(host)
        elif kind == SLOW_LINK:
            self._hosts.set_rate(host, _SLOW_BITS)
            over.wait(8.0)
            self._hosts.set_rate(host, None)
        elif kind in (POWER_OFF, COME_BACK):
            self._hosts.power_off(host)
            if kind == COME_BACK:
                self.remove(host)
                over.wait(10.0)
                self._hosts.start(host)
                self.hosts.append(host)
                self._tell()

    def _trainings(self) -> list[str]:
        """Processes of the training that run on any host."""
        found = []
        for name in _NAMES:
            if not self._hosts.is_running(name):
                continue
            for pid, process in self._hosts.processes(name).items():
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                    if b"tests.chaos.training" in words and b"-m" in words:
                        found.append(f"{name}-{pid}")
        return found
