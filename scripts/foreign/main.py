"""Started by `scripts/foreign.sh`: prepares a folder, runs each row in it, prints the table."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from rows import KNOWN, ROWS, Row

_HERE = Path(__file__).resolve().parent
_REPOSITORY = _HERE.parents[1]
_RANKS = 2

_IMPORTS = (
    (r"^(\s*)import horovod\.tensorflow\.keras as (\w+)", r"\1import hvd_dbs.keras as \2"),
    (r"^(\s*)import horovod\.keras as (\w+)", r"\1import hvd_dbs.keras as \2"),
    (r"^(\s*)import horovod\.tensorflow as (\w+)", r"\1import hvd_dbs.tensorflow as \2"),
)

_STUBS = {
    "mock": "from unittest.mock import *\n",
    "parameterized": '''import sys


class parameterized:
    """As much of the package as the tests need."""

    @staticmethod
    def expand(cases):
        def add(test):
            names = sys._getframe(1).f_locals
            for i, case in enumerate(cases):
                names[f"{test.__name__}_{i}"] = lambda self, case=case: test(self, *case)
        return add
''',
}
"""Modules that tests import, where they are not installed."""


def main(arguments: list[str]) -> int:
    """The exit code: 1 if a row failed that is not known to."""
    if not arguments or not Path(arguments[0]).is_dir():
        print("usage: scripts/foreign.sh SNAPSHOT [WORD ...]", file=sys.stderr)
        return 2
    snapshot, words = Path(arguments[0]).resolve(), arguments[1:]
    version = _git(snapshot, "log", "-1", "--format=%h of %cs").strip()
    lines, failed = [], False
    with tempfile.TemporaryDirectory(prefix="foreign") as name:
        folder = Path(name)
        for module, text in _STUBS.items():
            if importlib.util.find_spec(module) is None:
                (folder / f"{module}.py").write_text(text)
        for row in ROWS:
            if words and not any(word in row.path for word in words):
                continue
            mends = _prepare(snapshot, row, folder)
            is_good, result = _run(row, folder)
            failed |= not is_good
            lines.append(f"| {Path(row.path).name} | {', '.join(mends) or '-'} | {result} |")
            print(lines[-1], flush=True)
    print(f"\nHorovod {version}, {_RANKS} ranks\n\n| script | mends | result |\n|---|---|---|")
    print("\n".join(lines))
    return int(failed)


def _git(snapshot: Path, *command: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(snapshot), *command], capture_output=True, text=True, check=True
    )
    return result.stdout


def _prepare(snapshot: Path, row: Row, folder: Path) -> list[str]:
    """Copies a script and what it needs, mended; the names of the mends that found something."""
    used: list[str] = []
    for path in (row.path, *row.others):
        text = _git(snapshot, "show", f"HEAD:{path}")
        for pattern, replacement in _IMPORTS:
            text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
        for mend in row.mends:
            text, count = re.subn(mend.pattern, mend.text, text)
            if count and mend.name not in used:
                used.append(mend.name)
        (folder / Path(path).name).write_text(text)
    return used


def _run(row: Row, folder: Path) -> tuple[bool, str]:
    """Whether a row went as it should, and the result in words."""
    script = folder / Path(row.path).name
    program = [sys.executable, str(_HERE / "on_rank.py"), str(folder), str(script), *row.arguments]
    if row.elastic:
        hosts = folder / "hosts.sh"
        hosts.write_text(f"#!/bin/sh\necho localhost:{_RANKS}\n")
        hosts.chmod(0o755)
        launch = ["horovodrun", "-np", str(_RANKS), "--min-np", str(_RANKS)]
        launch += ["--host-discovery-script", str(hosts), "--network-interfaces", "lo"]
    else:
        launch = ["mpirun", "-np", str(_RANKS), "--bind-to", "none", "--oversubscribe"]
    output = folder / f"{script.stem}.log"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*launch, *program],
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(row.limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    text = output.read_text(errors="replace")
    if script.name.startswith("test_"):
        return _result_of_tests(script, folder, code, text)
    same = re.search(r"FOREIGN: (\d ranks have the same \d+ weights)", text)
    if code == 0 and same:
        return True, f"runs; {same.group(1)}"
    reason = KNOWN.get(script.name)
    if reason:
        return True, f"known: {reason}"
    print(text[-6000:])
    return False, "FAILED: " + (f"nothing within {row.limit:.0f} s" if code is None else f"{code}")


def _result_of_tests(script: Path, folder: Path, code: int | None, text: str) -> tuple[bool, str]:
    """What the ranks' tests have come to: one that fails on any rank has failed."""
    outcomes: dict[str, str] = {}
    for report in sorted(folder.glob(f"{script.stem}-*.xml")):
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag for child in case}
            kind = "failed" if kinds & {"failure", "error"} else "passed"
            kind = "skipped" if "skipped" in kinds else kind
            name = str(case.get("name"))
            if outcomes.get(name) != "failed":
                outcomes[name] = kind
    failed = sorted(name for name, kind in outcomes.items() if kind == "failed")
    known = [name for name in failed if f"{script.name}::{name}" in KNOWN]
    unknown = [name for name in failed if name not in known]
    counts = [list(outcomes.values()).count(kind) for kind in ("passed", "skipped")]
    result = f"{counts[0]} passed, {counts[1]} skipped"
    for name in known:
        result += f"; known: {name}: {KNOWN[f'{script.name}::{name}']}"
    if code != 0 or not outcomes:
        unknown.append("no end" if code is None else f"exit code {code}")
    if unknown:
        print(text[-12000:])
        return False, f"{result}; FAILED: {', '.join(unknown)}"
    return True, result


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PY_COLORS": "0",
        "PYTHONPATH": os.pathsep.join([str(_REPOSITORY), str(folder)]),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what a job has left: all processes of the session that it began."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == process.pid:
                    os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                continue
    process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
