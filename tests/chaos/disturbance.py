"""Runs one schedule against a real `horovodrun` and real processes."""

from __future__ import annotations

import functools
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hvd_dbs.job.journal import read_journal
from tests.chaos import history
from tests.chaos.emulated import EmulatedHosts
from tests.chaos.job import OUTPUT, Cluster, Watch
from tests.chaos.schedule import (
    FREEZE,
    LEAVES_BELOW,
    NETWORK_KINDS,
    NUM_EPOCHS,
    NUM_SAMPLES,
    PASSING_KINDS,
    SLOW_KINDS,
    SPEEDS,
    UNTIL_NAMED,
    Fault,
    Schedule,
)
from tests.jobs import job_environment, kill_all_of, python, run_job


@dataclass
class Outcome:
    """What came out of a schedule.

    Attributes:
        problems: What is wrong; empty if all is well.
        happened: The faults that had an effect on the training, by kind; one finds nobody to hit
            where a single rank is left.
        num_runs: How often training began, the first time included.
        longest_silence: Most seconds between two steps.
        output: What the job printed.
    """

    problems: list[str]
    happened: list[str] = field(default_factory=list)
    num_runs: int = 0
    longest_silence: float = 0.0
    output: str = ""


@dataclass(frozen=True)
class Pace:
    """How fast things go.

    Attributes:
        gloo_timeout: Seconds after which Horovod takes a rank that is silent in a sum for lost.
        start_seconds: Seconds after which ranks do not wait for a new one any longer.
        step_seconds: Least seconds of a step.
        abort_seconds: Seconds after which the watchdog ends a rank; None: never.
    """

    gloo_timeout: int = 20
    start_seconds: int = 10
    step_seconds: float = 0.15
    abort_seconds: float | None = None


def run_schedule(schedule: Schedule, folder: Path, pace: Pace | None = None) -> Outcome:
    """Runs a job under the schedule's faults to its end and checks it."""
    cluster = EmulatedHosts(folder) if schedule.on_hosts else Cluster(folder)
    with cluster:
        return _run(schedule, cluster, pace or Pace())


def _run(schedule: Schedule, cluster: Cluster, pace: Pace) -> Outcome:
    folder = cluster.folder
    cluster.add(schedule.num_ranks)
    command = [
        *("horovodrun", "--gloo", "--min-np", "1", "--max-np", "4"),
        *("-np", str(schedule.num_ranks), "--network-interfaces", cluster.interface),
        *("--host-discovery-script", str(cluster.write_script()), *cluster.launcher_options),
        *python("-m", "tests.chaos.training", str(folder), "--hold", *cluster.options),
        *("--pause", str(pace.step_seconds)),
        *(["--abort-seconds", str(pace.abort_seconds)] if pace.abort_seconds else []),
        *("--strategy", schedule.strategy, "--global-batch", schedule.global_batch),
        *("--batches-per-commit", str(schedule.batches_per_commit)),
        *(["--speeds"] if schedule.has_speeds else []),
    ]
    environment = {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(pace.gloo_timeout),
        "HVD_DBS_START_SECONDS": str(pace.start_seconds),
    }
    with (folder / OUTPUT).open("w") as output:
        process = subprocess.Popen(
            cluster.launched(command),
            cwd=Path(__file__).resolve().parents[2],
            env={**job_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        watch = Watch(process, cluster)
        traces = []
        try:
            for fault in schedule.faults:
                if watch.reached(fault.step):
                    time.sleep(fault.pause_seconds)
                    traces.append(disturb(fault, cluster, watch))
            watch.go_on()
            watch.ended()
            left_over = cluster.left_over()
        finally:
            watch.let_go()
            kill_all_of(process)
    outcome = Outcome([*watch.problems, *left_over], output=(folder / OUTPUT).read_text())
    events = watch.events()
    outcome.happened = [trace.kind for trace in traces if trace is not None and trace.is_in(events)]
    outcome.num_runs = len({event["run"] for event in events if event["event"] == "begin"})
    outcome.longest_silence = watch.longest_silence
    if process.returncode != 0:
        outcome.problems.append(f"horovodrun ended with exit code {process.returncode}")
    outcome.problems += history.problems(events, NUM_SAMPLES, NUM_EPOCHS)
    for journal in cluster.journals():
        outcome.problems += _problems_of_journal(journal, events)
    if not outcome.problems and schedule.global_batch == "constant":
        outcome.problems += _far_from_undisturbed(folder / "weights.npz")
    return outcome


def _problems_of_journal(path: Path, events: list[dict[str, Any]]) -> list[str]:
    """Whoever is rank 0 goes on with the journal, each time with the ranks that there are."""
    try:
        parts, num_damaged = read_journal(path)
    except ValueError as error:
        # Another host's rank may have been rank 0 for a few steps only.
        return [] if "has not come to a decision" in str(error) else [str(error)]
    sizes = {event["size"] for event in events if event["event"] == "begin"}
    strange = sorted({len(part.job.hosts) for part in parts} - sizes)
    problems = [f"the journal has {num_damaged} damaged lines"] if num_damaged else []
    return problems + [f"the journal has rounds of {size} ranks" for size in strange]


@dataclass(frozen=True)
class _Trace:
    """A fault that has been sent on its way, to a process or to a host.

    Attributes:
        kind: What it is.
        process: The process, if it is one.
        host: The host, if it is one.
        time: When it was.
    """

    kind: str
    process: str = ""
    host: str = ""
    time: float = field(default_factory=time.time)

    def is_in(self, events: list[dict[str, Any]]) -> bool:
        """Whether training took notice, by what was noted in it."""
        own = [event for event in events if event["process"] == self.process]
        # A host that comes back uses numbers of processes again.
        begun = [event["time"] for event in own if event["event"] == "start"]
        anew = min((time for time in begun if time > self.time), default=float("inf"))
        own = [event for event in own if event["time"] < anew]
        later = [event for event in events if event["time"] > self.time]
        if self.kind == "add a host":
            return any(event["event"] == "start" and event["host"] == self.host for event in later)
        if self.kind in SPEEDS:
            there = {event["process"] for event in events if event.get("host") == self.host}
            ended = {event["process"] for event in events if event["event"] == "end"}
            return bool(later) and bool(there & ended) == (SPEEDS[self.kind] > LEAVES_BELOW)
        if self.kind == "remove a host":
            gone = {event["process"] for event in events if event.get("host") == self.host}
            return bool(later) and all(
                event["event"] != "end" for event in events if event["process"] in gone
            )
        if self.kind in PASSING_KINDS:
            return bool(later)
        if self.kind in SLOW_KINDS and self.kind != FREEZE:
            return any(event in later for event in own)
        return bool(later) and all(event["event"] != "end" for event in own)


def disturb(fault: Fault, cluster: Cluster, watch: Watch) -> _Trace | None:
    """Lets a fault happen, to a rank that is part of the job now; None if there is none."""
    if fault.kind in SPEEDS:
        host = cluster.hosts[int(fault.choice * len(cluster.hosts))]
        (cluster.folder / f"speed.{host}").write_text(str(SPEEDS[fault.kind]))
        return _Trace(fault.kind, host=host)
    # Somebody must be left: a rank that is about to end, or to be taken for lost, does not count.
    ranks = sorted(watch.ranks(), key=lambda begin: begin["rank"])
    ranks = [begin for begin in ranks if begin["host"] in cluster.hosts]
    ranks = [begin for begin in ranks if begin["process"] not in cluster.doomed]
    alive = [begin for begin in ranks if cluster.is_alive(begin["process"])]
    if fault.kind == "add a host":
        return _Trace(fault.kind, host=cluster.add()[0])
    if fault.kind == "kill rank 0":
        victims = [begin for begin in alive if begin["rank"] == 0] or alive
    elif fault.kind in ("kill another", UNTIL_NAMED):
        victims = [begin for begin in alive if begin["rank"] > 0]
    else:
        victims = alive
    if not victims:
        return None
    victim = victims[int(fault.choice * len(victims))]
    if fault.kind in SLOW_KINDS:
        watch.slow_down(victim, fault.kind)
        return _Trace(fault.kind, victim["process"])
    if fault.kind in PASSING_KINDS:
        watch.strike(fault.kind, victim["host"])
        return _Trace(fault.kind, host=victim["host"])
    if len(alive) == 1:
        return None
    cluster.doomed.add(victim["process"])
    if fault.kind == "remove a host":
        cluster.remove(victim["host"])
        return _Trace(fault.kind, host=victim["host"])
    if fault.kind in NETWORK_KINDS:
        watch.strike(fault.kind, victim["host"])
    elif fault.kind == "raise an exception":
        (cluster.folder / f"raise.{victim['process']}").touch()
    else:
        cluster.send(victim["process"], signal.SIGKILL)
    if fault.replace:
        cluster.add()
    kind = "kill another" if fault.kind == "kill rank 0" and victim["rank"] > 0 else fault.kind
    return _Trace(kind, victim["process"])


@functools.cache
def undisturbed() -> tuple[np.ndarray, ...]:
    """The weights that one process alone arrives at, on the same global batches."""
    with tempfile.TemporaryDirectory() as folder:
        job = run_job(python("-m", "tests.chaos.training", folder, "--pause", "0"), timeout=180)
        if job.exit_code != 0:
            raise RuntimeError(job.output[-4000:])
        with np.load(Path(folder) / "weights.npz") as weights:
            return tuple(weights[name] for name in weights.files)


def _far_from_undisturbed(path: Path) -> list[str]:
    with np.load(path) as weights:
        pairs = zip(undisturbed(), (weights[name] for name in weights.files), strict=True)
        difference = max(float(np.abs(one - other).max()) for one, other in pairs)
    if difference > 1e-3:
        return [f"the weights differ by {difference:.2g} from those of an undisturbed run"]
    return []
