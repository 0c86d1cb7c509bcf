"""Programs that the check starts, and ends whatever happens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

MPS = "nvidia-cuda-mps-control"
"""NVIDIA's Multi-Process Service: processes share a GPU at the same time, each on a part of it."""
_REPOSITORY = Path(__file__).resolve().parents[2]
_SECONDS_TO_START, _SECONDS_TO_END = 1.0, 20.0
"""A service that cannot run ends at once, and mpirun takes seconds to end its ranks."""


def run(words: Sequence[str], seconds: float) -> int | None:
    """Runs a program in the repository; its exit code, None where it took too long."""
    process = subprocess.Popen(words, cwd=_REPOSITORY, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


@contextlib.contextmanager
def mps(gpu: str) -> Iterator[dict[str, str]]:
    """Runs the Multi-Process Service for a GPU; yields what processes need in their environment.

    Args:
        gpu: As in `CUDA_VISIBLE_DEVICES`; processes of the service know it as GPU 0.

    Raises:
        RuntimeError: If it ends at once.
    """
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        place = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **place, "CUDA_VISIBLE_DEVICES": gpu}
        output = Path(folder, "output")  # A pipe that nobody reads would stop it once it is full.
        with output.open("wb") as file:
            daemon = subprocess.Popen(
                [MPS, "-f"], env=environment, stdout=file, stderr=file, start_new_session=True
            )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(_SECONDS_TO_START)
                raise RuntimeError(f"{MPS} ended at once: {output.read_text()[-300:].strip()}")
            yield {**place, "CUDA_VISIBLE_DEVICES": "0"}
        finally:
            if daemon.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    quitting = {"input": b"quit\n", "timeout": _SECONDS_TO_END}
                    subprocess.run([MPS], env=environment, check=False, **quitting)
                    daemon.wait(_SECONDS_TO_END)
            _end(daemon)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that still runs, and then what it has started."""
    if process.poll() is not None:
        return
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()  # mpirun ends its ranks.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS_TO_END)
    for one in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.kill()
    process.wait()
