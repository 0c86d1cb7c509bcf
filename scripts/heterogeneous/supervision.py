"""The running job: start, find and throttle its ranks, disturb them, and leave nothing behind."""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from heterogeneous.cgroup_hierarchies import cores_allowed_here
from heterogeneous.guard import Guard
from heterogeneous.planning import Placement, place
from heterogeneous.processes import (
    RANK_VARIABLES,
    SIZE_VARIABLES,
    TOKEN_VARIABLE,
    JobProcess,
    ProcessTable,
    new_token,
    pin,
    send,
)
from heterogeneous.request import PROGRAM, Disturbance, Request, parse_request
from heterogeneous.throttle import Throttle, choose_throttle, describe_shares

STEP_FILE_VARIABLE = "HVD_DBS_STEP_FILE"
SECONDS_BETWEEN_SCANS = 0.05
SECONDS_UNTIL_NOTICE = 30.0
EXIT_USAGE = 2
FULL_SPEED = 1.0

# A rank has one core, and waits for others by polling. None of these overrides the user's own.
ENVIRONMENT_DEFAULTS = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}

# What ends a job: (signal, to the launcher alone, seconds until the next). What is left when the
# launcher has ended gets a moment to end by itself.
LATE_END = ((None, False, 0.5), (signal.SIGTERM, False, 2.0), (signal.SIGKILL, False, 5.0))
ORDERLY_END = ((signal.SIGTERM, True, 4.0), *LATE_END)


class JobError(Exception):
    """The job is not what was asked for; the message is for the user."""


def say(text: str) -> None:
    """One line to the user, apart from the output of the job."""
    print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)


def job_environment(given: Mapping[str, str], token: str, step_file: Path) -> dict[str, str]:
    """The environment of the launcher."""
    environment = {**ENVIRONMENT_DEFAULTS, **given}
    # Ours may itself run inside an MPI job; its ranks are not those of the job to start.
    for name in (*RANK_VARIABLES, *SIZE_VARIABLES):
        environment.pop(name, None)
    return {**environment, TOKEN_VARIABLE: token, STEP_FILE_VARIABLE: str(step_file)}


class Ranks:
    """Throttles and pins what is found of the job, and changes speeds in time."""

    def __init__(self, request: Request, placement: Placement, cores: Sequence[int]) -> None:
        """`cores` are the ids of the cores that the placement counts."""
        self._request = request
        self._placement = placement
        self._cores = [cores[index] for index in placement.cores]
        self._started = request.start is None
        self._pending = sorted(request.disturbances, key=lambda change: change.moment.value)
        self._found: dict[int, set[int]] = {rank: set() for rank in range(len(request.speeds))}
        self.found_at: float | None = None

    @property
    def missing(self) -> list[int]:
        """Ranks of which no process was ever seen."""
        return [rank for rank, pids in self._found.items() if not pids]

    def shares(self) -> list[float]:
        """The share of a core of each rank, before disturbances."""
        return [self._placement.cpu_share(speed) for speed in self._request.speeds]

    def limit(self, throttle: Throttle) -> None:
        """Sets the shares to start with."""
        for rank, share in enumerate(self.shares()):
            throttle.set_share(rank, share if self._started else FULL_SPEED)

    def take(self, processes: Sequence[JobProcess], throttle: Throttle, now: float) -> None:
        """Holds those that are new.

        Raises:
            JobError: If there are more ranks, or fewer, than speeds.
        """
        num_speeds = len(self._found)
        for process in processes:
            if process.rank is None:
                continue
            size = max(process.size or 0, process.rank + 1)
            if size > num_speeds or (process.size or num_speeds) < num_speeds:
                raise JobError(
                    f"--speeds has {num_speeds} values but the command started {size} ranks; "
                    "give one speed per rank. The job is stopped."
                )
            if process.pid not in self._found[process.rank]:
                throttle.add(process.rank, process.pid)
                pin(process.pid, self._cores[process.rank])
                self._found[process.rank].add(process.pid)
        if self.found_at is None and not self.missing:
            self.found_at = now
            say(f"found and throttled all {num_speeds} ranks.")

    def change(self, throttle: Throttle, steps: int, now: float) -> None:
        """Does what is due of the request's start and disturbances."""
        if self.found_at is None:
            return
        seconds = now - self.found_at
        start = self._request.start
        if not self._started and start is not None and start.is_reached(steps, seconds):
            self._started = True
            self.limit(throttle)
            say(f"from {start} on: {describe_shares(self.shares(), self._cores)}.")
        if not self._started:
            return
        due = [change for change in self._pending if change.moment.is_reached(steps, seconds)]
        for change in due:
            self._pending.remove(change)
            self._disturb(change, throttle)

    def _disturb(self, change: Disturbance, throttle: Throttle) -> None:
        share = self._placement.cpu_share(change.speed)
        throttle.set_share(change.rank, share)
        say(
            f"from {change.moment} on: rank {change.rank} has speed {change.speed:g}, "
            f"{share:.3g} of core {self._cores[change.rank]}."
        )


class Job:
    """One run of the command, from start to a clean end."""

    def __init__(self, request: Request) -> None:
        """Makes the throttle; starts nothing yet.

        Raises:
            JobError: If the mechanism that was asked for is not possible.
        """
        cores = sorted(os.sched_getaffinity(0))
        cores = cores[: max(1, math.floor(min(cores_allowed_here(), len(cores))))]
        placement = place(request.peak_speeds, len(cores))
        self._request = request
        self._ranks = Ranks(request, placement, cores)
        self._token = new_token()
        self._table = ProcessTable(self._token)
        self._signal = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
                signal.signal(number, self._note_signal)
        try:
            self._throttle = choose_throttle(request.mechanism, len(request.speeds))
        except OSError as error:
            raise JobError(f"--mechanism cgroup: {error}. Use signals or auto.") from None
        self._folder = Path(tempfile.mkdtemp(prefix="hvd_dbs-"))
        self._step_file = self._folder / "step"

        say(f"throttles by {self._throttle.description}.")
        if placement.factor < 1:
            say(
                f"the speeds do not fit on {len(cores)} cores (at most 1 each): all are scaled by "
                f"{placement.factor:.3g}."
            )
        start = "" if request.start is None else f" (from {request.start} on)"
        chosen = [cores[index] for index in placement.cores]
        say(f"shares{start}: {describe_shares(self._ranks.shares(), chosen)}.")

    def run(self) -> int:
        """Runs the job to its end; returns its exit status as a shell gives it."""
        guard = Guard(self._clean_up)
        launcher: subprocess.Popen[bytes] | None = None
        try:
            self._ranks.limit(self._throttle)
            environment = job_environment(os.environ, self._token, self._step_file)
            try:
                # In a session of its own, so that Ctrl-C in a terminal reaches us alone.
                launcher = subprocess.Popen(
                    self._request.command, env=environment, start_new_session=True
                )
            except OSError as error:
                raise JobError(f"cannot start {self._request.command[0]!r}: {error}.") from None
            guard.tell_launcher(launcher.pid)
            return self._watch(launcher)
        finally:
            self._clean_up(launcher.pid if launcher and launcher.poll() is None else None)
            if launcher:
                launcher.wait()
            guard.dismiss()

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number

    def _watch(self, launcher: "subprocess.Popen[bytes]") -> int:
        started = next_scan = time.monotonic()
        has_noticed = False
        while launcher.poll() is None:
            if self._signal:
                say(f"{signal.Signals(self._signal).name}: the job is stopped.")
                return 128 + self._signal
            now = time.monotonic()
            if now >= next_scan:
                next_scan = now + SECONDS_BETWEEN_SCANS
                self._ranks.take(self._table.scan(), self._throttle, now)
                self._ranks.change(self._throttle, read_steps(self._step_file), now)
            if not has_noticed and self._ranks.missing and now > started + SECONDS_UNTIL_NOTICE:
                has_noticed = True
                say(f"no process of ranks {self._ranks.missing} found on this machine so far.")
            time.sleep(self._throttle.tick())
        if self._ranks.missing:
            say(f"ranks {self._ranks.missing} were never found on this machine, so not throttled.")
        status = launcher.returncode
        return status if status >= 0 else 128 - status

    def _clean_up(self, launcher: int | None) -> None:
        """Ends every process of the job and removes groups and files."""
        self._throttle.release()
        self._end_processes(launcher)
        self._throttle.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_processes(self, launcher: int | None) -> None:
        for number, launcher_only, seconds in LATE_END if launcher is None else ORDERLY_END:
            alive = self._alive()
            send(alive, signal.SIGCONT)
            if number is not None:
                send(alive & {launcher} if launcher_only else alive, number)
            deadline = time.monotonic() + seconds
            while (alive := self._alive()) and time.monotonic() < deadline:
                if launcher_only and launcher not in alive:
                    break
                time.sleep(0.02)
            if not self._alive():
                return
        say(f"processes {sorted(self._alive())} do not end.")

    def _alive(self) -> set[int]:
        return {process.pid for process in self._table.scan()} | self._throttle.members()


def read_steps(path: Path) -> int:
    """The finished steps that rank 0 has written, 0 while there is nothing to read."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def main(arguments: Sequence[str]) -> int:
    """Runs `arguments` as `heterogeneous.sh` does; returns the exit status."""
    request = parse_request(arguments)
    try:
        return Job(request).run()
    except JobError as error:
        say(f"error: {error}")
        return EXIT_USAGE
