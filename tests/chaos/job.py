"""An elastic job under faults: the hosts it is told of, and what it notes of itself."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.schedule import FREEZE, JOURNAL, UNTIL_NAMED, WARN_SECONDS

# Horovod takes each of these names of this machine for a host of its own.
HOST_NAMES = (
    "localhost",
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "0x7f.1",
    "0177.1",
    "0x7f.0.1",
)

MOST_SILENCE = 150.0
"""Seconds without a step, in which a job counts as hanging. A lost rank costs the others at most
Horovod's Gloo timeout, twice where two are lost, and the start of a new process."""


@dataclass
class Cluster:
    """The hosts that the discovery script lists, and their processes: names of this machine.

    Attributes:
        folder: Of what the job notes.
        hosts: Those that the script lists now.
        unused: Names of hosts that can be added.
        interface: The network interface of all hosts.
        launcher_options: Options of `horovodrun`.
        options: Options of the training.
        doomed: Processes that a fault ends, at once or later.
    """

    folder: Path
    hosts: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=lambda: list(HOST_NAMES))
    interface: str = "lo"
    launcher_options: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    doomed: set[str] = field(default_factory=set)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def launched(self, words: list[str]) -> list[str]:
        """The words that start the launcher."""
        return words

    def journals(self) -> list[Path]:
        """What ranks 0 have noted of decisions."""
        return [self.folder / JOURNAL]

    def left_over(self) -> list[str]:
        """What should have ended with the job."""
        return []

    def send(self, process: str, number: int) -> None:
        """Sends a signal to a process, by the name that it notes."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process.rpartition("-")[2]), number)

    def is_alive(self, process: str) -> bool:
        """Whether a process runs, be it frozen."""
        return is_alive(int(process.rpartition("-")[2]))

    def strike(self, kind: str, host: str, over: threading.Event) -> None:
        """Lets a fault happen to a whole host."""
        raise ValueError(f"{kind} needs emulated hosts")

    def add(self, count: int = 1) -> list[str]:
        new, self.unused = self.unused[:count], self.unused[count:]
        self.hosts += new
        self._tell()
        return new

    def remove(self, host: str) -> None:
        self.hosts.remove(host)
        self._tell()

    def write_script(self) -> Path:
        """The discovery script; it counts how often it was asked."""
        script = self.folder / "discover.sh"
        script.write_text(f"#!/bin/sh\ncd '{self.folder}' && cat hosts && echo >> asked\n")
        script.chmod(0o755)
        return script

    @property
    def num_asked(self) -> int:
        """How often the launcher has asked for hosts."""
        asked = self.folder / "asked"
        return asked.stat().st_size if asked.exists() else 0

    def _tell(self) -> None:
        # Renamed into place: the script must not read half of it.
        temporary = self.folder / "hosts.new"
        temporary.write_text("".join(f"{host}:1\n" for host in self.hosts))
        temporary.replace(self.folder / "hosts")


OUTPUT = "output.txt"
"""What the job prints, in its folder."""


class Watch:
    """Follows the notes of a job."""

    def __init__(self, process: subprocess.Popen[str], cluster: Cluster) -> None:
        self._process, self._folder, self._cluster = process, cluster.folder, cluster
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._strikes: list[threading.Thread] = []
        self._num_steps = 0
        self._holds = self._may_end = False
        self._last_progress = time.monotonic()
        self.longest_silence = 0.0
        self.problems: list[str] = []

    def events(self) -> list[dict[str, Any]]:
        """All notes; a line that is being written is left out."""
        events = []
        for file in self._folder.glob("*.jsonl"):
            for line in file.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    events.append(json.loads(line))
        return events

    def ranks(self) -> list[dict[str, Any]]:
        """The last beginning of each process that takes part, with its host."""
        events = sorted(self.events(), key=lambda event: event["time"])
        hosts = {event["process"]: event["host"] for event in events if event["event"] == "start"}
        begins = [event for event in events if event["event"] == "begin"]
        runs = [begin["run"] for begin in begins]
        return [
            {**begin, "host": hosts[begin["process"]]}
            for begin in begins
            if begin["run"] == runs[-1]
        ]

    def reached(self, num_steps: int) -> bool:
        """Waits for so many steps; False if the job ends or hangs before."""
        while self._process.poll() is None and not self.problems:
            self._look()
            if self._num_steps >= num_steps or self._holds:
                return True
            time.sleep(0.1)
        return False

    def go_on(self) -> None:
        """Lets the job end, when the launcher has told it of all hosts there are."""
        for thread in self._strikes:
            thread.join()
        told = self._cluster.num_asked + 2
        while self._process.poll() is None and not self.problems and self._cluster.num_asked < told:
            self._look()
            time.sleep(0.1)
        self._may_end = True
        (self._folder / "faults_over").touch()

    def ended(self) -> None:
        """Waits for the end of the job."""
        while self._process.poll() is None and not self.problems:
            self._look()
            time.sleep(0.1)

    def slow_down(self, victim: dict[str, Any], kind: str) -> None:
        """Stops and continues a process in a thread of its own."""
        hows = {
            "stop for 5 s": self._stop_once,
            "slow to a tenth": self._stop_and_go,
            UNTIL_NAMED: self._stop_until_named,
            FREEZE: lambda process: self._cluster.send(process, signal.SIGSTOP),
        }
        thread = threading.Thread(target=hows[kind], args=(victim["process"],))
        self._threads.append(thread)
        thread.start()

    def strike(self, kind: str, host: str) -> None:
        """Lets a fault happen to a host in a thread of its own."""
        thread = threading.Thread(target=self._cluster.strike, args=(kind, host, self._over))
        self._threads.append(thread)
        self._strikes.append(thread)
        thread.start()

    def let_go(self) -> None:
        """Ends what still stops and continues processes."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _stop_until_named(self, process: str) -> None:
        """Rank 0 says who it is, and what it was doing."""
        said = re.compile(
            rf"rank \d \(host \S+, process {process.rpartition('-')[2]}\) has made no progress for "
            rf"\d+ s. Last finished step: epoch \d, step \d+. It has been silent .* Before, it was "
        )
        self._cluster.send(process, signal.SIGSTOP)
        end = time.monotonic() + 10 * WARN_SECONDS
        while not said.search((self._folder / OUTPUT).read_text()):
            if self._over.wait(0.1) or time.monotonic() > end:
                self.problems.append(f"nobody said that process {process} was stopped")
                break
        self._cluster.send(process, signal.SIGCONT)

    def _stop_once(self, process: str) -> None:
        self._cluster.send(process, signal.SIGSTOP)
        self._over.wait(5.0)
        self._cluster.send(process, signal.SIGCONT)

    def _stop_and_go(self, process: str) -> None:
        while not self._over.wait(0.01) and self._cluster.is_alive(process):
            self._cluster.send(process, signal.SIGSTOP)
            self._over.wait(0.09)
            self._cluster.send(process, signal.SIGCONT)

    def _look(self) -> None:
        # Each step is noted by all ranks; the most notes of one process per run are the steps.
        steps: dict[tuple[str, int], int] = {}
        for event in self.events():
            self._holds |= event["event"] == "held"
            if event["event"] == "step":
                key = (event["run"], event["process"])
                steps[key] = steps.get(key, 0) + 1
        by_run: dict[str, int] = {}
        for (run, _), count in steps.items():
            by_run[run] = max(by_run.get(run, 0), count)
        now, num_steps = time.monotonic(), sum(by_run.values())
        if self._holds and not self._may_end:
            self._last_progress = now  # It waits for the next fault.
        if num_steps > self._num_steps:
            if self._num_steps:
                self.longest_silence = max(self.longest_silence, now - self._last_progress)
            self._num_steps, self._last_progress = num_steps, now
        elif now - self._last_progress > MOST_SILENCE:
            self.problems.append(f"no step for {MOST_SILENCE:.0f} s, after {num_steps} of them")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
