"""Runs the parts as jobs and writes the report; on the machine that is to be checked."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.gpu_check import processes
from scripts.gpu_check.machine import Machine, look

_SECONDS = 900.0
"""Of a job; on an H200 and an H100 none but `curves` took more than a minute."""
_NO_GPU = 3


@dataclass(frozen=True)
class Part:
    """What is checked in a job.

    Attributes:
        name: As in `scripts.gpu_check.job.PARTS`.
        num_ranks: Of its job; they share the first GPU.
        gpus_of_their_own: Whether each rank needs one instead, and NCCL.
        percentages: Of the GPU's multiprocessors, what each rank may use; empty: they take turns.
        last_without: Whether the last rank has no GPU.
    """

    name: str
    num_ranks: int = 2
    gpus_of_their_own: bool = False
    percentages: tuple[int, ...] = ()
    last_without: bool = False

    @property
    def title(self) -> str:
        """Its name in the report."""
        suffixes = {
            " on two GPUs": self.gpus_of_their_own,
            " with a rank without a GPU": self.last_without,
        }
        return self.name + "".join(suffix for suffix, holds in suffixes.items() if holds)

    def variables(self) -> list[dict[str, str]]:
        """The environment of each rank, beside what all have."""
        found: list[dict[str, str]] = [{} for _ in range(self.num_ranks)]
        for rank, percentage in enumerate(self.percentages):
            found[rank]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage)
        if self.last_without:
            found[-1]["CUDA_VISIBLE_DEVICES"] = "-1"
        return found


PARTS = (
    Part("operations", num_ranks=1),
    Part("bandwidth", num_ranks=1),
    Part("clock", num_ranks=1),
    Part("curves", num_ranks=1),
    Part("allreduce"),
    Part("sharing"),
    Part("overlap"),
    Part("unequal", percentages=(70, 30)),
    Part("unequal", last_without=True),
    Part("verify"),
    Part("verify", last_without=True),
    Part("allreduce", gpus_of_their_own=True),
    Part("verify", gpus_of_their_own=True),
)


def main() -> int:
    """The exit code: 0, 1 if a part failed, 3 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_check.sh --tensorflow", description=__doc__)
    parser.add_argument(
        "--dry-run", action="store_true", help="everything, small, on the CPU instead of a GPU"
    )
    parser.add_argument("--report", type=Path, default=Path("gpu_report.json"))
    parser.add_argument(
        "--parts", nargs="+", choices={part.name for part in PARTS}, help="default: all"
    )
    options = parser.parse_args()
    machine = look(hide_gpus=options.dry_run)
    if not machine.gpus and not options.dry_run:
        print("gpu_check.sh: TensorFlow sees no GPU here.", file=sys.stderr)
        print("gpu_check.sh: --tensorflow --dry-run runs everything on the CPU.", file=sys.stderr)
        return _NO_GPU
    chosen = [part for part in PARTS if not options.parts or part.name in options.parts]
    parts: dict[str, dict[str, Any]] = {}
    report = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "dry_run": options.dry_run,
        "gpus": machine.gpus,
        "versions": machine.versions,
        "parts": parts,
    }
    for name, found in run(chosen, machine, dry_run=options.dry_run):
        parts[name] = found
        # Whoever has not the time for all parts has those that are over.
        options.report.write_text(json.dumps(report, indent=2) + "\n")
        print(f"{found['status']:8}{name}  {found.get('reason', '')}".rstrip(), flush=True)
    print(f"== {options.report}", flush=True)
    return int(any(part["status"] == "failed" for part in parts.values()))


def run(
    parts: Sequence[Part], machine: Machine, *, dry_run: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the title of each part and what it came to.

    On a GPU each part has a job of its own: after an error a GPU fails all calls of a process. A
    dry run has one job, which starts faster, and runs each part once: the CPU is all that there is.
    """
    if dry_run:
        names = list(dict.fromkeys(part.name for part in parts))
        yield from _job(names, [{"CUDA_VISIBLE_DEVICES": "-1"}] * 2, dry_run=True).items()
        return
    for part in parts:
        reason = why_not(part, machine)
        if reason:
            yield part.title, {"status": "skipped", "reason": reason}
        else:
            yield part.title, _run(part)


def _run(part: Part) -> dict[str, Any]:
    """Runs a part in a job of its own; what it came to."""
    gpus = {} if part.gpus_of_their_own else {"CUDA_VISIBLE_DEVICES": _first()}
    try:
        with processes.mps(_first()) if part.percentages else contextlib.nullcontext(gpus) as all_:
            variables = [{**all_, **rank} for rank in part.variables()]
            found = _job([part.name], variables, dry_run=False)[part.name]
    except RuntimeError as error:
        return {"status": "failed", "reason": str(error)}
    return {**found, "percent of the GPU": part.percentages} if part.percentages else found


def why_not(part: Part, machine: Machine) -> str:
    """Why a part cannot run on a machine; empty: it can."""
    if part.gpus_of_their_own:
        if len(machine.gpus) < 2:
            return "there is one GPU"
        return "" if machine.has_nccl else "Horovod is built without NCCL"
    if part.num_ranks == 1:
        return ""
    if part.percentages and not shutil.which(processes.MPS):
        return f"there is no {processes.MPS}, which the driver's package brings"
    if part.last_without and machine.has_nccl:
        return "Horovod is built with NCCL, which joins no rank without a GPU"
    shares = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") != "0"
    if machine.has_nccl and not shares:
        return "ranks of NCCL share no GPU; HVD_DBS_NCCL=0 scripts/setup.sh --gpu sets up without"
    return ""


def _first() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]


def _job(
    names: Sequence[str], variables: Sequence[Mapping[str, str]], *, dry_run: bool
) -> dict[str, dict[str, Any]]:
    """Runs parts in a job of a rank for each environment; of what it did not get to, why."""
    with tempfile.TemporaryDirectory(prefix="gpu_check") as folder:
        results = Path(folder, "results.jsonl")
        program = [sys.executable, "-m", "scripts.gpu_check.job", str(results), *names]
        words = ["mpirun", "--bind-to", "none"]
        for rank in variables:
            exports = itertools.chain.from_iterable(("-x", f"{k}={v}") for k, v in rank.items())
            words += ["-np", "1", *exports, *program, *["--small"] * dry_run, ":"]
        start = time.monotonic()
        exit_code = processes.run(words[:-1], _SECONDS)
        lines = results.read_text().splitlines(keepends=True) if results.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        found = {line.pop("part"): line for line in whole}
        why = "was killed" if exit_code is None else f"ended with {exit_code}"
        why = f"the job {why} after {time.monotonic() - start:.0f} s"
        if exit_code != 0 and len(found) == len(names):  # What comes after the last part broke.
            found[names[-1]].setdefault("reason", why)
            found[names[-1]]["status"] = "failed"
        return {name: found.get(name, {"status": "failed", "reason": why}) for name in names}


if __name__ == "__main__":
    sys.exit(main())
