"""Jobs that the selected tests need, begun ahead of them, beside tests that start none.

    JOBS = ahead.Jobs({"doctor": mpirun(2, DOCTOR)}, timeout=120)

    @JOBS.needed("doctor")
    def test_doctor():
        assert JOBS["doctor"].exit_code == 0

`tests/conftest.py` begins what the selected tests are marked with. A process of its own runs it:
tests change the environment, the memory and the threads of the one that they are in.
"""

from __future__ import annotations

import functools
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.jobs import REPOSITORY, Job, kill_all_of, python, run_job

FOLDER = "@folder@"
"""Stands for the job's own folder in the words of its command."""

_SECONDS_TO_CLOSE = 60.0
_MOST_BYTES_OF_A_JOB = 4 * 2**30
_CORES_OF_A_JOB = 1.4
"""Two or three ranks wait for each other for a part of the time: CPU seconds over seconds, seen."""


@dataclass(frozen=True)
class Request:
    """A job to run.

    Attributes:
        words: Its command.
        timeout: Seconds from its start, after which it is killed.
        environment: Variables that it gets besides those of all jobs.
    """

    words: tuple[str, ...]
    timeout: float
    environment: tuple[tuple[str, str], ...] = ()


class Jobs:
    """Jobs by name: what they came to, waited for where that is not known yet."""

    def __init__(
        self,
        commands: Mapping[Any, Sequence[str]],
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        variables = tuple((environment or {}).items())
        self._requests = {
            name: Request(tuple(words), timeout, variables) for name, words in commands.items()
        }

    def needed(self, *names: Any) -> pytest.MarkDecorator:
        """Marks a test that needs these."""
        return pytest.mark.needs(*(self._requests[name] for name in names))

    def __getitem__(self, name: Any) -> Job:
        return runner().outcome(self._requests[name])

    def folder(self, name: Any) -> Path:
        """The folder that a job has had for itself."""
        return runner().folder(self._requests[name])


class Runner:
    """The process that runs jobs, a few at once, in the order in which they were begun."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hvd_dbs_tests_"))
        self._numbers: dict[Request, int] = {}
        self._exit_codes: dict[int, int] = {}
        self.seconds: dict[str, list[float]] = {}
        with (self._folder / "errors").open("w") as errors:
            self._process = subprocess.Popen(
                python("-m", "tests.ahead", str(self._folder), str(num_at_once())),
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def begin(self, request: Request) -> int:
        """Has a job run as soon as there is room for it, if it was not begun yet."""
        if request not in self._numbers:
            number = self._numbers[request] = len(self._numbers)
            words = [word.replace(FOLDER, str(self.folder(request))) for word in request.words]
            line = {**asdict(request), "words": words, "folder": str(self._folder / str(number))}
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        return self._numbers[request]

    def outcome(self, request: Request) -> Job:
        """Waits for the end of a job."""
        number = self.begin(request)
        while number not in self._exit_codes:
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"no job runs any more: {(self._folder / 'errors').read_text()}")
            folder, exit_code, words, seconds = json.loads(line)
            self._exit_codes[int(Path(folder).name)] = exit_code
            self.seconds[" ".join(words)] = seconds
        return Job(self._exit_codes[number], (self.folder(request) / "output").read_text())

    def folder(self, request: Request) -> Path:
        return self._folder / str(self._numbers[request])

    def close(self) -> None:
        """Kills what still runs, as would the end of this process."""
        self._process.stdin.close()
        try:
            self._process.wait(_SECONDS_TO_CLOSE)
        finally:
            kill_all_of(self._process)
            self._process.stdout.close()


@functools.cache
def runner() -> Runner:
    """The one of this process, which starts with the first job."""
    return Runner()


def begin(requests: Iterable[Request]) -> None:
    """Begins jobs, those first that may take longest."""
    for request in sorted(requests, key=lambda request: -request.timeout):
        runner().begin(request)


def close() -> None:
    """Ends all jobs."""
    if runner.cache_info().currsize:
        runner().close()
        runner.cache_clear()


def seconds() -> dict[str, list[float]]:
    """What jobs have taken, by their commands: time, and time of CPUs."""
    return runner().seconds if runner.cache_info().currsize else {}


def num_at_once() -> int:
    """As many jobs as there is room for."""
    by_memory = psutil.virtual_memory().available // _MOST_BYTES_OF_A_JOB
    by_cores = math.ceil(len(os.sched_getaffinity(0)) / _CORES_OF_A_JOB)
    return max(1, min(by_cores, by_memory))


def _run(words: list[str], timeout: float, environment: list[list[str]], folder: str) -> None:
    """Runs a job in its folder, and says so."""
    Path(folder).mkdir()
    begin, cpu_seconds = time.monotonic(), _cpu_seconds()
    try:
        job = run_job(words, timeout, dict(environment))
    except Exception:
        job = Job(-1, traceback.format_exc())
    (Path(folder) / "output").write_text(job.output)
    with _SAYING:
        taken = [time.monotonic() - begin, _cpu_seconds() - cpu_seconds]
        print(json.dumps([folder, job.exit_code, words, taken]), flush=True)


def _cpu_seconds() -> float:
    """Of all that has ended so far; of one job alone where no other runs beside it."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


_SAYING = threading.Lock()


def _main(folder: Path, num_at_once: int) -> None:
    """Runs the jobs that come in until nobody is there any more who could ask for one."""
    pool = ThreadPoolExecutor(num_at_once)
    jobs = [pool.submit(_run, **json.loads(line)) for line in sys.stdin]
    pool.shutdown(wait=False, cancel_futures=True)
    while not all(job.done() for job in jobs):
        for process in psutil.Process().children(recursive=True):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.05)
    shutil.rmtree(folder)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
