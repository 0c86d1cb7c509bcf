"""What a host discovery script of an elastic job must print, and whether it does."""

from __future__ import annotations

import os
import re
import signal
import subprocess

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def discover(
    script: str, default_slots: int | None = None, timeout: float = 30.0
) -> dict[str, int]:
    """Runs a discovery script as horovodrun does, and says clearly what is wrong with it.

    horovodrun runs it every second, deadlocks where it does not end, and shows a traceback of its
    own where it cannot read a line.

    Args:
        script: Command line; a file must be executable.
        default_slots: Ranks on a host whose line does not say (`--slots-per-host`).
        timeout: Seconds after which it is taken to hang.

    Returns:
        Slots by host.

    Raises:
        ValueError: If it cannot be run, fails, hangs, or prints what is no list of hosts.
    """
    if os.path.isfile(script) and not os.access(script, os.X_OK):
        raise ValueError(f"discovery script {script} is not executable: chmod +x {script}")
    process = subprocess.Popen(
        script,
        shell=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # So that what it has started ends with it.
    )
    try:
        printed, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()  # A process that has left the group may still keep it open.
        raise ValueError(
            f"discovery script {script} has not ended after {timeout:g} s. It is run every second "
            f"and must only print what is known."
        ) from error
    if process.returncode == 127 and os.path.isfile(script) and os.path.dirname(script) == "":
        raise ValueError(
            f"discovery script {script} is looked for on the PATH, as it has no folder. Give "
            f"./{script}, to horovodrun as well."
        )
    if process.returncode != 0:
        raise ValueError(
            f"discovery script {script} ended with exit code {process.returncode}; it says: "
            f"{said.strip() or 'nothing on its error output'}"
        )
    return parse_hosts(printed, script, default_slots)


def parse_hosts(text: str, script: str, default_slots: int | None = None) -> dict[str, int]:
    r"""Slots by host, from what a discovery script printed.

    Raises:
        ValueError: If a line is not HOST or HOST:SLOTS, a host comes twice, or there is none.

    Example:
        >>> parse_hosts("node1:2\nnode2\n", "hosts.sh", default_slots=4)
        {'node1': 2, 'node2': 4}
    """
    hosts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line:
            continue
        where = f"line {number} of what discovery script {script} prints, {line!r},"
        host, colon, slots = line.partition(":")
        if not _HOST.fullmatch(host):
            raise ValueError(f"{where} names no host; expected HOST or HOST:SLOTS.")
        if colon and not (slots.isascii() and slots.isdigit() and int(slots) > 0):
            raise ValueError(f"{where} has {slots!r} slots; expected a whole number from 1 on.")
        if not colon and default_slots is None:
            raise ValueError(
                f"{where} does not say how many ranks to run there. Print HOST:SLOTS, or give "
                f"--slots-per-host."
            )
        if host in hosts:
            raise ValueError(f"{where} names a host that an earlier line has. Give all its slots.")
        hosts[host] = int(slots) if colon else int(default_slots or 0)
    if not hosts:
        raise ValueError(
            f"discovery script {script} prints no host. horovodrun would wait for one, up to "
            f"--elastic-timeout."
        )
    return hosts
