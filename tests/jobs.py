"""Starts jobs of several processes, and never leaves one behind."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
_PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True)
class Job:
    """A job that has ended."""

    exit_code: int
    output: str


def run_job(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> Job:
    """Runs a command to its end; after `timeout` seconds it and all it started are killed."""
    variables = {**job_environment(), **(environment or {})}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            exit_code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            exit_code = -1
        finally:
            kill_all_of(process)
        output.seek(0)
        text = output.read()
    if exit_code == -1:
        text += f"\n[killed after {timeout:.0f} s]"
    return Job(exit_code, text)


def job_environment() -> dict[str, str]:
    """The environment in which jobs run: small, and without a way off this machine."""
    return {
        **os.environ,
        # As root, with more ranks than cores, and without a remote shell: nothing leaves this host.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # Every rank looks for tensors each millisecond by default, and others have its core then.
        "HOROVOD_CYCLE_TIME": "5",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PATH": f"{_PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
    }


def kill_all_of(process: subprocess.Popen[str]) -> None:
    """Kills what a job has started, by process id: its descendants, and what is in its session."""
    # A process id that has been waited for may be somebody else's by now.
    running = [psutil.Process(process.pid)] if process.poll() is None else []
    doomed = {one.pid: one for root in running for one in [root, *root.children(recursive=True)]}
    for one in psutil.process_iter():
        try:
            if os.getsid(one.pid) == process.pid:
                doomed[one.pid] = one
        except ProcessLookupError:
            continue
    for one in doomed.values():
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(list(doomed.values()), timeout=10)
    process.poll()


def python(*arguments: str) -> list[str]:
    """This Python with arguments."""
    return [sys.executable, *arguments]


def mpirun(num_ranks: int, command: Sequence[str]) -> list[str]:
    """A command on `num_ranks` ranks under mpirun, which sleep while they wait for each other."""
    preloaded = f"LD_PRELOAD={_sleep_when_idle()}"
    return ["mpirun", "-np", str(num_ranks), "--bind-to", "none", "-x", preloaded, *command]


@functools.cache
def _sleep_when_idle() -> Path:
    """The library of `tests/cc/sleep_when_idle.c`, compiled where it is not up to date."""
    source = REPOSITORY / "tests/cc/sleep_when_idle.c"
    library = REPOSITORY / "build/tests/sleep_when_idle.so"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        new = library.with_suffix(f".{os.getpid()}")  # Another process may compile it too.
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", new, source], check=True)
        new.replace(library)
    return library


def horovodrun(num_ranks: int, command: Sequence[str], *options: str) -> list[str]:
    """A command on `num_ranks` ranks under horovodrun."""
    return ["horovodrun", "-np", str(num_ranks), *options, *command]
