"""Checks that run on all ranks of one job, one after the other: process start-up is shared.

A module of checks has functions `check_*` without arguments, defined or assigned. Each asserts on
its rank.
What fails on any rank fails the check, and the other ranks go on to the next one together.
`tests/mpi/test_*.py` starts the jobs, of one module or several, and reports each check as a test:

    test_three_ranks = as_tests("training", some("loop", ["check_one"]), ranks=3)
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ahead import FOLDER, Jobs
from tests.jobs import mpirun, python

_TIMEOUT = 900.0  # Two ranks or three on two cores, beside other tests.
_REPORT = "report.jsonl"
_CHECK = re.compile(r"^(?:def )?(check_\w+)(?:\(| = )", re.MULTILINE)
_PATIENCE = 30.0
_FOLDER = Path(__file__).parent


def some(module: str, names: Sequence[str]) -> str:
    """These checks of a module, for `as_tests`."""
    return f"{module}:{','.join(names)}"


def all_but(module: str, names: Sequence[str]) -> str:
    """The other checks of a module, for `as_tests`."""
    all_names = _names(module)
    unknown = sorted(set(names) - set(all_names))
    assert not unknown, f"{module}_checks.py has no {unknown}"
    return some(module, [name for name in all_names if name not in names])


def as_tests(
    *modules: str, ranks: int, environment: Mapping[str, str] | None = None
) -> Callable[..., None]:
    """A parametrized test: each check of the modules, in one job.

    Args:
        *modules: Without `tests.mpi.` and `_checks`: all checks of a module, or `some`.
        ranks: Ranks of the job.
        environment: Variables of the job.
    """
    names = [name for module in modules for name in _names(module)]
    return as_tests_of("tests.mpi.checks", modules, names, ranks, environment)


def as_tests_of(
    program: str,
    arguments: Sequence[str],
    names: Sequence[str],
    ranks: int,
    environment: Mapping[str, str] | None = None,
) -> Callable[..., None]:
    """A parametrized test: each check that a program gives to `run`, in one job.

    Args:
        program: Its module. Its last argument is the report.
        arguments: What comes before that.
        names: The checks.
        ranks: Ranks of the job.
        environment: Variables of the job.
    """
    assert len(set(names)) == len(names), f"two checks of {program} have the same name"
    words = python("-m", program, *arguments, f"{FOLDER}/{_REPORT}")
    jobs = Jobs({ranks: mpirun(ranks, words)}, _TIMEOUT, environment)

    @pytest.mark.parametrize("check", names)
    @jobs.needed(ranks)
    def test_check(check: str) -> None:
        output = jobs[ranks].output
        results = _results(jobs.folder(ranks) / _REPORT)
        if check not in results:
            pytest.fail(f"the job ended before {check}:\n{output[-6000:]}", pytrace=False)
        if results[check]["failure"]:
            pytest.fail(results[check]["failure"], pytrace=False)
        if results[check]["skipped"]:
            pytest.skip(results[check]["skipped"])

    return test_check


def _names(words: str) -> list[str]:
    """The checks that words of `as_tests` stand for, without importing them."""
    module, _, chosen = words.partition(":")
    names = _CHECK.findall((_FOLDER / f"{module}_checks.py").read_text())
    unknown = sorted(set(chosen.split(",")) - set(names)) if chosen else []
    assert not unknown, f"{module}_checks.py has no {unknown}"
    return chosen.split(",") if chosen else names


def _results(report: Path) -> dict[str, dict[str, str]]:
    """Failure and reason to skip by check (empty texts: passed)."""
    lines = report.read_text().splitlines() if report.exists() else []
    return {line["check"]: line for line in map(json.loads, lines)}


def run(checks: Mapping[str, Callable[[], None]], report: Path) -> None:
    """Runs checks on this rank, after `hvd.init()`; rank 0 reports."""
    from hvd_dbs.comm import agreement
    from hvd_dbs.comm.collective import connect

    collective = connect()
    # Tracing makes many objects that live on: the collector looks at the young ones after 50,000
    # more of them, not after 700, and never at what was imported.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    for name, check in checks.items():
        failure = skipped = ""
        begin = time.monotonic()
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
            print(f"{time.monotonic() - begin:6.1f} s: {name}", flush=True)


def _main(modules: Sequence[str], report: Path) -> None:
    """Runs the checks of modules."""
    import tensorflow as tf

    import hvd_dbs.tensorflow as hvd

    hvd.init()
    if os.environ.get("HVD_DBS_ALL_CASES") != "1":
        # A check runs its graphs a few times: to optimize them took a fifth of the processor time.
        # Examples and commands run with TensorFlow's optimizer of graphs, as users have it.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    checks: dict[str, Any] = {}
    for words in modules:
        module = importlib.import_module(f"tests.mpi.{words.partition(':')[0]}_checks")
        checks |= {name: getattr(module, name) for name in _names(words)}
    run(checks, report)


if __name__ == "__main__":
    _main(sys.argv[1:-1], Path(sys.argv[-1]))
