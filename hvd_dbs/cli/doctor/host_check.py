"""Looks at the hosts of a job to come from the machine that will start it, all at once."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hvd_dbs.cli.doctor import host_probe
from hvd_dbs.cli.doctor.host_probe import MARK, addresses_of, interfaces
from hvd_dbs.elastic.ssh_keepalive import keepalive_seconds

_MOST_AT_ONCE = 64
_MOST_SECONDS_TO_CONNECT = 10


@dataclass(frozen=True)
class Here:
    """The machine that starts jobs.

    Attributes:
        python: The Python that runs hvd-dbs.
        prefix: The folder of the MPI whose mpirun is on PATH; empty: there is none.
        mpirun: The first line of `mpirun --version`.
        versions: Of packages, by name, as `host_probe` gives them.
        finds_orted: Whether mpirun itself knows where orted is on other hosts.
    """

    python: str
    prefix: str = ""
    mpirun: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    finds_orted: bool = False

    @classmethod
    def look(cls) -> Here:
        """This machine."""
        mpirun = shutil.which("mpirun")
        prefix = str(Path(mpirun).parent.parent) if mpirun else ""
        return cls(
            python=sys.executable,
            prefix=prefix,
            mpirun=_output([mpirun, "--version"], 10.0).text.partition("\n")[0] if mpirun else "",
            versions=host_probe.probe([])["versions"],
            finds_orted=bool(prefix) and _has_launch_agent(prefix),
        )


def _has_launch_agent(prefix: str) -> bool:
    """Whether Open MPI is told what to start on other hosts, as scripts/setup.sh tells it."""
    if os.environ.get("OMPI_MCA_orte_launch_agent"):  # noqa: SIM112
        return True
    try:
        lines = Path(prefix, "etc/openmpi-mca-params.conf").read_text().splitlines()
    except OSError:
        return False
    return any(line.split("=")[0].strip() == "orte_launch_agent" for line in lines)


@dataclass(frozen=True)
class HostFacts:
    """What is known of a host.

    Attributes:
        name: As it was given.
        addresses: Of this name, here; none: it is unknown.
        is_local: Whether it is this machine.
        error: Why nothing is known of it; empty: something is.
        is_reached: Whether a shell has run there.
        has_python: Whether it has the Python that runs hvd-dbs here, at the same place.
        orted: What Open MPI's daemon belongs to, such as "orted of mpirun (Open MPI) 4.1.8", by
            where it is: "PATH" and "prefix".
        seen: What `host_probe` has seen there; None: it did not run.
        alive_seconds: ssh's ServerAliveInterval for this host; 0: none.
    """

    name: str
    addresses: tuple[str, ...] = ()
    is_local: bool = False
    error: str = ""
    is_reached: bool = False
    has_python: bool = False
    orted: dict[str, str] = field(default_factory=dict)
    seen: dict[str, Any] | None = None
    alive_seconds: int = 0


def look_at_hosts(names: Sequence[str], here: Here, timeout: float) -> list[HostFacts]:
    """Looks at all hosts at once; none of them is waited for longer than `timeout` seconds.

    Args:
        names: Of the hosts.
        here: This machine.
        timeout: Seconds for each host.
    """
    facts = {name: HostFacts(name, error=f"no answer within {timeout:g} s") for name in names}
    free = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def look(name: str) -> None:
        with free:
            facts[name] = _look_at(name, names, here, timeout)

    threads = [threading.Thread(target=look, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    # Each step has a limit of its own, but for a resolver that never answers.
    rounds = -(-len(names) // _MOST_AT_ONCE)
    end = time.monotonic() + rounds * (timeout + 5.0)
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [facts[name] for name in names]


def _look_at(name: str, names: Sequence[str], here: Here, timeout: float) -> HostFacts:
    end = time.monotonic() + timeout
    addresses = tuple(addresses_of(name))
    facts = HostFacts(name, addresses)
    if not addresses:
        return replace(facts, error="its name is unknown here")
    own = {address for address, _ in interfaces().values()}
    is_local = any(one in own or one == "::1" or one.startswith("127.") for one in addresses)
    command = ["sh", "-c", _script(here, [one for one in names if one != name])]
    if not is_local:
        patience = max(1, min(_MOST_SECONDS_TO_CONNECT, int(timeout)))
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={patience}"]
        facts = replace(facts, alive_seconds=keepalive_seconds(name) or 0)
        command = ["ssh", *options, name, shlex.join(command)]
    answer = _output(command, max(end - time.monotonic(), 1.0), _PROBE)
    facts = _read(replace(facts, is_local=is_local), answer.text)
    if facts.seen is not None or (facts.is_reached and not facts.has_python):
        return facts
    return replace(facts, error=answer.error or f"ssh ends with exit code {answer.code}")


_PROBE = Path(host_probe.__file__).read_text()


def _script(here: Here, names: Sequence[str]) -> str:
    """What a shell on the host runs, with the probe as its standard input."""
    mark, python = MARK.strip(), shlex.quote(here.python)
    # orted does not say its version; the mpirun beside it does.
    version = '"${orted%/*}/mpirun" --version 2>/dev/null | head -n 1'
    lines = [
        f"cd {shlex.quote(os.getcwd())} 2>/dev/null",
        f'echo "{mark} shell"',
        f'orted=$(command -v orted) && echo "{mark} PATH orted of $({version})"',
        f'test -x {python} || {{ echo "{mark} no Python"; exit 0; }}',
        f'echo "{mark} Python"',
        f"exec {python} - {shlex.join(names)}",
    ]
    if here.prefix:
        lines.insert(1, f"orted={shlex.quote(f'{here.prefix}/bin/orted')}")
        lines.insert(2, f'test -x "$orted" && echo "{mark} prefix orted of $({version})"')
    return "\n".join(lines)


def _read(facts: HostFacts, text: str) -> HostFacts:
    """With what the host has answered."""
    for line in text.splitlines():
        mark, _, answer = line.partition(MARK.strip())
        answer = answer.strip()
        where, _, version = answer.partition(" ")
        if mark or not answer:
            continue
        facts = replace(facts, is_reached=True)
        if where in ("PATH", "prefix") and version:
            facts = replace(facts, orted={**facts.orted, where: version})
        elif where == "Python":
            facts = replace(facts, has_python=True)
        elif answer.startswith("{"):
            with contextlib.suppress(ValueError):
                facts = replace(facts, seen=json.loads(answer))
    return facts


@dataclass(frozen=True)
class _Output:
    text: str
    error: str
    code: int


def _output(command: Sequence[str], timeout: float, given: str = "") -> _Output:
    """What a program prints; it and all it has started are ended after `timeout` seconds."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return _Output("", f"{command[0]}: {error.strerror}", 127)
    late = ""
    try:
        text, errors = process.communicate(given, timeout)
    except subprocess.TimeoutExpired:
        late = f"no answer within {timeout:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        text, errors = process.communicate()
    lines = errors.strip().splitlines()
    return _Output(text, late or (lines[-1] if lines else ""), process.returncode)
