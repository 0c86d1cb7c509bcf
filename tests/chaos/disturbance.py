"""Runs one schedule against a real `horovodrun` and real processes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos import history
from tests.chaos.schedule import NUM_EPOCHS, NUM_SAMPLES, Fault, Schedule
from tests.jobs import job_environment, kill_all_of, python, run_job

# Horovod takes each of these names of this machine for a host of its own.
HOST_NAMES = ("localhost", "127.0.0.1", "127.1", "127.0.1", "0x7f.1", "0177.1", "0x7f.0.1")

MOST_SILENCE = 150.0
"""Seconds without a step, in which a job counts as hanging. A lost rank costs the others at most
Horovod's Gloo timeout, twice where two are lost, and the start of a new process."""


@dataclass
class Outcome:
    """What came out of a schedule.

    Attributes:
        problems: What is wrong; empty if all is well.
        num_runs: How often training began, the first time included.
        longest_silence: Most seconds between two steps.
        output: What the job printed.
    """

    problems: list[str]
    num_runs: int = 0
    longest_silence: float = 0.0
    output: str = ""


@dataclass
class _Cluster:
    """The hosts that the discovery script tells, and the processes that are alive."""

    folder: Path
    hosts: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=lambda: list(HOST_NAMES))

    def add(self, count: int = 1) -> None:
        for _ in range(min(count, len(self.unused))):
            self.hosts.append(self.unused.pop(0))
        self._tell()

    def remove(self, host: str) -> None:
        self.hosts.remove(host)
        self._tell()

    def _tell(self) -> None:
        # Renamed into place: the script must not read half of it.
        temporary = self.folder / "hosts.new"
        temporary.write_text("".join(f"{host}:1\n" for host in self.hosts))
        temporary.replace(self.folder / "hosts")


def run_schedule(schedule: Schedule, folder: Path, gloo_timeout: int = 20) -> Outcome:
    """Runs a job under the schedule's faults to its end and checks it."""
    cluster = _Cluster(folder)
    cluster.add(schedule.num_ranks)
    script = folder / "discover.sh"
    script.write_text(f"#!/bin/sh\ncat '{folder}/hosts'\n")
    script.chmod(0o755)
    command = [
        *("horovodrun", "--gloo", "--min-np", "1", "--max-np", "4"),
        *("-np", str(schedule.num_ranks), "--network-interfaces", "lo"),
        *("--host-discovery-script", str(script)),
        *python("-m", "tests.chaos.training", str(folder)),
        *("--strategy", schedule.strategy, "--global-batch", schedule.global_batch),
        *("--batches-per-commit", str(schedule.batches_per_commit)),
    ]
    environment = {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(gloo_timeout),
        "HVD_DBS_START_SECONDS": "60",
    }
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).resolve().parents[2],
            env={**job_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        watch = _Watch(process, folder)
        try:
            for fault in schedule.faults:
                if watch.reached(fault.step):
                    time.sleep(fault.pause_seconds)
                    disturb(fault, cluster, watch)
            watch.ended()
        finally:
            watch.let_go()
            kill_all_of(process)
        output.seek(0)
        text = output.read()
    (folder / "output.txt").write_text(text)
    outcome = Outcome(list(watch.problems), output=text)
    events = watch.events()
    outcome.num_runs = len({event["run"] for event in events if event["event"] == "begin"})
    outcome.longest_silence = watch.longest_silence
    if process.returncode != 0:
        outcome.problems.append(f"horovodrun ended with exit code {process.returncode}")
    outcome.problems += history.problems(events, NUM_SAMPLES, NUM_EPOCHS)
    if not outcome.problems and schedule.global_batch == "constant":
        outcome.problems += _far_from_undisturbed(folder / "weights.npz")
    return outcome


def disturb(fault: Fault, cluster: _Cluster, watch: _Watch) -> None:
    """Lets a fault happen, to a rank that is part of the job now."""
    # Somebody must be left: a rank whose host is being removed does not count.
    ranks = [begin for begin in watch.ranks() if begin["host"] in cluster.hosts]
    alive = [begin for begin in ranks if _is_alive(begin["pid"])]
    others = [begin for begin in alive if begin["rank"] > 0]
    if fault.kind == "add a host":
        cluster.add()
    elif fault.kind == "remove a host":
        hosts = [host for host in cluster.hosts if host in {begin["host"] for begin in alive}]
        if len(hosts) > 1:
            cluster.remove(hosts[int(fault.choice * len(hosts))])
    elif fault.kind == "stop for 5 s" and alive:
        watch.slow_down(alive[int(fault.choice * len(alive))]["pid"], _stop_once)
    elif fault.kind == "slow to a tenth" and alive:
        watch.slow_down(alive[int(fault.choice * len(alive))]["pid"], _stop_and_go)
    elif len(alive) > 1:
        victims = others
        if fault.kind == "kill rank 0":
            victims = [begin for begin in alive if begin["rank"] == 0] or others
        victim = victims[int(fault.choice * len(victims))]
        if fault.kind == "raise an exception":
            (cluster.folder / f"raise.{victim['pid']}").touch()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim["pid"], signal.SIGKILL)
        if fault.replace:
            cluster.add()


class _Watch:
    """Follows the notes of a job."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._num_steps = 0
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
        hosts = {event["pid"]: event["host"] for event in events if event["event"] == "start"}
        begins = [event for event in events if event["event"] == "begin"]
        runs = [begin["run"] for begin in begins]
        return [
            {**begin, "host": hosts[begin["pid"]]} for begin in begins if begin["run"] == runs[-1]
        ]

    def reached(self, num_steps: int) -> bool:
        """Waits for so many steps; False if the job ends or hangs before."""
        while self._process.poll() is None and not self.problems:
            self._look()
            if self._num_steps >= num_steps:
                return True
            time.sleep(0.1)
        return False

    def ended(self) -> None:
        """Waits for the end of the job."""
        while self._process.poll() is None and not self.problems:
            self._look()
            time.sleep(0.1)

    def slow_down(self, pid: int, how: Callable[[int, threading.Event], None]) -> None:
        """Stops and continues a process in a thread of its own."""
        thread = threading.Thread(target=how, args=(pid, self._over))
        self._threads.append(thread)
        thread.start()

    def let_go(self) -> None:
        """Ends what still stops and continues processes."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        # Each step is noted by all ranks; the most notes of one process per run are the steps.
        steps: dict[tuple[str, int], int] = {}
        for event in self.events():
            if event["event"] == "step":
                key = (event["run"], event["pid"])
                steps[key] = steps.get(key, 0) + 1
        by_run: dict[str, int] = {}
        for (run, _), count in steps.items():
            by_run[run] = max(by_run.get(run, 0), count)
        now, num_steps = time.monotonic(), sum(by_run.values())
        if num_steps > self._num_steps:
            if self._num_steps:
                self.longest_silence = max(self.longest_silence, now - self._last_progress)
            self._num_steps, self._last_progress = num_steps, now
        elif now - self._last_progress > MOST_SILENCE:
            self.problems.append(f"no step for {MOST_SILENCE:.0f} s, after {num_steps} of them")


def _stop_once(pid: int, over: threading.Event) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        over.wait(5.0)
        os.kill(pid, signal.SIGCONT)


def _stop_and_go(pid: int, over: threading.Event) -> None:
    with contextlib.suppress(ProcessLookupError):
        while not over.wait(0.01):
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.09)
            os.kill(pid, signal.SIGCONT)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@functools.cache
def _undisturbed() -> tuple[np.ndarray, ...]:
    """The weights that one process alone arrives at, on the same global batches."""
    with tempfile.TemporaryDirectory() as folder:
        job = run_job(python("-m", "tests.chaos.training", folder, "--pause", "0"), timeout=180)
        if job.exit_code != 0:
            raise RuntimeError(job.output[-4000:])
        with np.load(Path(folder) / "weights.npz") as weights:
            return tuple(weights[name] for name in weights.files)


def _far_from_undisturbed(path: Path) -> list[str]:
    with np.load(path) as weights:
        pairs = zip(_undisturbed(), (weights[name] for name in weights.files), strict=True)
        difference = max(float(np.abs(one - other).max()) for one, other in pairs)
    if difference > 1e-3:
        return [f"the weights differ by {difference:.2g} from those of an undisturbed run"]
    return []
