"""heterogeneous.sh around real jobs under mpirun, by both mechanisms."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from heterogeneous.cgroup_hierarchies import hierarchies_here
from heterogeneous.cgroup_quota import CgroupQuota
from heterogeneous.processes import TOKEN_VARIABLE, ProcessTable

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "heterogeneous.sh"
BURN = Path(__file__).with_name("burn_windows.py")
TIMEOUT_SECONDS = 120


def why_no_cgroup() -> str:
    try:
        CgroupQuota(1).close()
    except OSError as error:
        return str(error)
    return ""


SEARCH_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun", path=SEARCH_PATH) is None, reason="mpirun is not on PATH"
)
no_cgroup = why_no_cgroup()
needs_cgroup = pytest.mark.skipif(bool(no_cgroup), reason=no_cgroup)
MECHANISMS = ["signals", pytest.param("cgroup", marks=needs_cgroup)]


class Run:
    """heterogeneous.sh around `mpirun`, in its own folder."""

    def __init__(self, folder: Path, options: str, command: list[str | Path]) -> None:
        self.folder = folder
        environment = {
            **os.environ,
            "PATH": SEARCH_PATH,
            "TMPDIR": str(folder),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        self.output = folder / "output"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [SCRIPT, *options.split(), "--", *command],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_SECONDS)

    def rank_pids(self, size: int) -> list[int]:
        """Waits until so many ranks burn CPU."""
        wait_until(lambda: len(list(self.folder.glob("ready-*"))) == size, self.output)
        wait_until(lambda: "found and throttled" in self.output.read_text(), self.output)
        return [int((self.folder / f"ready-{rank}").read_text()) for rank in range(size)]

    def job_pids(self) -> list[int]:
        """Every living process that the job started."""
        mark = f"{TOKEN_VARIABLE}={self.process.pid}-".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def leftovers(self) -> list[str]:
        """Whatever of the run is still there: processes, groups, files."""
        groups = [
            str(group)
            for hierarchy in hierarchies_here()
            for folder in (hierarchy.own, *hierarchy.own.parents)
            for group in folder.glob(f"hvd_dbs-{self.process.pid}")
        ]
        files = [str(path) for path in self.folder.glob("hvd_dbs-*")]
        return [*map(str, self.job_pids()), *groups, *files]

    def kill(self) -> None:
        for pid in [*self.job_pids(), *([self.process.pid] if self.process.poll() is None else [])]:
            os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], object], output: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.02)


def test_only_processes_younger_than_the_run_belong_to_it() -> None:
    """What is found may be killed, so an older process is not ours even if it has the token."""
    environment = {**os.environ, TOKEN_VARIABLE: "x"}
    older = subprocess.Popen(["sleep", "60"], env=environment)
    table = ProcessTable("x")
    younger = subprocess.Popen(["sleep", "60"], env=environment)
    other = subprocess.Popen(["sleep", "60"])
    try:
        wait_until(table.scan, Path(os.devnull))
        found = {process.pid for process in table.scan()}
    finally:
        for process in (older, younger, other):
            process.kill()
            process.wait()
    assert found == {younger.pid}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start_run(options: str, *command: str | Path) -> Run:
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        arguments = [folder if word == "FOLDER" else word for word in command]
        runs.append(Run(folder, options, arguments))
        return runs[-1]

    yield start_run
    for run in runs:
        run.kill()
        run.process.wait(TIMEOUT_SECONDS)


@pytest.mark.alone
@needs_mpirun
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_work_follows_speeds_and_disturbances(mechanism: str, start: Callable[..., Run]) -> None:
    """Rank 1 does half of rank 0's work; then they change places.

    Neither has much of its core, so that a neighbour on a shared machine has room beside them;
    the bounds are wide, since it may still take some of one core and not of the other.
    """
    ratios: list[float] = []
    for _ in range(3):
        run = start(
            f"--mechanism {mechanism} --speeds 0.4,0.2 --disturb 0:1:0.2 --disturb 1:1:0.4",
            *["mpirun", "-np", "2", sys.executable, BURN, "FOLDER", "2"],
        )
        assert run.wait() == 0, run.output.read_text()
        assert run.leftovers() == []
        first, second = (json.loads((run.folder / f"rank-{i}.json").read_text()) for i in (0, 1))
        ratios = [second[0] / first[0], first[1] / second[1]]
        if all(0.25 < ratio < 0.8 for ratio in ratios):
            return
    pytest.fail(f"the slower did {ratios} of the faster, by window; {run.output.read_text()}")


ENDS: dict[str, tuple[Callable[[Run, list[int]], None], int | None]] = {
    "SIGTERM": (lambda run, ranks: run.process.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
    "SIGINT": (lambda run, ranks: run.process.send_signal(signal.SIGINT), 128 + signal.SIGINT),
    "rank killed": (lambda run, ranks: os.kill(ranks[1], signal.SIGKILL), 128 + signal.SIGKILL),
    "itself killed": (lambda run, ranks: run.process.kill(), -signal.SIGKILL),
}

# How it hears of its own end is one thing for both mechanisms; a kill takes one of them unawares.
ENDS_BY_MECHANISM = [
    ("SIGTERM", "signals"),
    ("SIGINT", "signals" if no_cgroup else "cgroup"),
    *[("rank killed", "signals"), ("itself killed", "signals")],
    *[pytest.param(end, "cgroup", marks=needs_cgroup) for end in ("rank killed", "itself killed")],
]


@needs_mpirun
@pytest.mark.parametrize(("end", "mechanism"), ENDS_BY_MECHANISM)
def test_nothing_is_left_however_the_job_ends(
    end: str, mechanism: str, start: Callable[..., Run]
) -> None:
    run = start(
        f"--mechanism {mechanism} --speeds 1,0.1",
        *["mpirun", "-np", "2", sys.executable, BURN, "FOLDER", "0"],
    )
    ranks = run.rank_pids(2)
    assert run.leftovers() != []
    ends_it, status = ENDS[end]
    ends_it(run, ranks)
    assert run.wait() == status, run.output.read_text()
    if end == "itself killed":  # then its guard cleans up, a moment later
        wait_until(lambda: not run.leftovers(), run.output)
    assert run.leftovers() == []


def test_exit_status_is_passed_through(start: Callable[..., Run]) -> None:
    run = start("--speeds 1", "sh", "-c", "exit 7")
    assert run.wait() == 7
    assert "never found" in run.output.read_text()
    assert run.leftovers() == []


@needs_mpirun
def test_more_ranks_than_speeds_stop_the_job(start: Callable[..., Run]) -> None:
    command = f"mpirun -np 2 {sys.executable} {BURN} $0 0"  # not to be seen from outside
    run = start("--speeds 1", "sh", "-c", command, "FOLDER")
    assert run.wait() == 2
    assert "--speeds has 1 values but the command started 2 ranks" in run.output.read_text()
    assert run.leftovers() == []
