"""Checks that run on all ranks of one job, one after the other: process start-up is shared.

A module of checks has functions `check_*` without arguments, defined or assigned. Each asserts on
its rank.
What fails on any rank fails the check, and the other ranks go on to the next one together.
`tests/mpi/test_*.py` starts the job, of one module or several, and reports each check as a test:

    test_check = checks.as_tests("tests.mpi.training_checks", num_ranks=[1, 2, 3])
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ahead import FOLDER, Jobs
from tests.jobs import mpirun, python

_TIMEOUT = 600.0  # Two ranks or three on two cores, beside other tests.
_REPORT = "report.jsonl"
_CHECK = re.compile(r"^(?:def )?(check_\w+)(?:\(| = )", re.MULTILINE)
_PATIENCE = 30.0


def as_tests(
    *modules: str,
    num_ranks: Sequence[int],
    environment: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
) -> Callable[..., None]:
    """A parametrized test: each check of the modules, or `only` some, on each number of ranks."""
    names = [
        name
        for module in modules
        for name in _CHECK.findall(Path(*module.split(".")).with_suffix(".py").read_text())
    ]
    if only:
        names = [name for name in names if name in only]
        assert len(names) == len(only), f"one of {only} is not in {modules}"

    program = python("-m", "tests.mpi.checks", *modules, *only, f"{FOLDER}/{_REPORT}")
    jobs = Jobs({n: mpirun(n, program) for n in num_ranks}, _TIMEOUT, environment)

    @pytest.mark.parametrize("check", names)
    @pytest.mark.parametrize("ranks", [pytest.param(n, marks=jobs.needed(n)) for n in num_ranks])
    def test_check(ranks: int, check: str) -> None:
        output = jobs[ranks].output
        results = _results(jobs.folder(ranks) / _REPORT)
        if check not in results:
            pytest.fail(f"the job ended before {check}:\n{output[-6000:]}", pytrace=False)
        if results[check]["failure"]:
            pytest.fail(results[check]["failure"], pytrace=False)
        if results[check]["skipped"]:
            pytest.skip(results[check]["skipped"])

    return test_check


def _results(report: Path) -> dict[str, dict[str, str]]:
    """Failure and reason to skip by check (empty texts: passed)."""
    lines = report.read_text().splitlines() if report.exists() else []
    return {line["check"]: line for line in map(json.loads, lines)}


def _main(names: Sequence[str], report: Path) -> None:
    """Runs all checks of the modules named, or those named, on this rank; rank 0 reports."""
    import horovod.tensorflow as hvd

    hvd.init()
    from hvd_dbs.comm import agreement
    from hvd_dbs.comm import collective as job

    collective = job.connect()
    checks: dict[str, Any] = {}
    only = [name for name in names if name.startswith("check_")]
    for module in (importlib.import_module(name) for name in names if name not in only):
        checks |= {name: one for name, one in vars(module).items() if name.startswith("check_")}
    if only:
        checks = {name: checks[name] for name in only}
    for name, check in checks.items():
        failure = skipped = ""
        try:
            check()
        except pytest.skip.Exception as skip:
            skipped = str(skip)
        except BaseException:
            failure = traceback.format_exc()
            print(f"{name}: {failure}", file=sys.stderr, flush=True)
        # Ranks that did not fail may be waiting for this one in the middle of the check.
        patience = threading.Timer(_PATIENCE, os._exit, [1])
        if failure:
            patience.start()
        texts = agreement.allgather_text(collective, failure)
        skips = agreement.allgather_text(collective, skipped)
        patience.cancel()
        if collective.rank == 0:
            found = "\n".join(f"rank {rank}: {text}" for rank, text in enumerate(texts) if text)
            with report.open("a") as file:
                # A check counts as skipped only where no rank has run it.
                line = {"check": name, "failure": found, "skipped": skips[0] if all(skips) else ""}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:-1], Path(sys.argv[-1]))
