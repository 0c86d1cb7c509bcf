"""Whether ssh notices that a host is out of reach: elastic launchers learn of it by ssh alone."""

from __future__ import annotations

import logging
import socket
import subprocess
from collections.abc import Sequence

import psutil

_LOGGER = logging.getLogger(__name__)

_SECONDS = 10.0
FIX = "put 'ServerAliveInterval 5' and 'ServerAliveCountMax 3' for them into ~/.ssh/config"


def hosts_without_keepalive(hosts: Sequence[str]) -> list[str]:
    """Hosts to which a connection of ssh would outlive a cut, by this machine's configuration.

    Nothing is sent. This host, which needs no ssh, and what ssh cannot read are left out.
    """
    here = ("localhost", socket.gethostname())
    others = [host for host in hosts if host not in here and not host.startswith("127.")]
    return [host for host in others if keepalive_seconds(host) == 0]


def warn_without_keepalive() -> None:
    """Warns where the launcher runs on this host, and its ssh would never notice a cut."""
    hosts = hosts_without_keepalive(_hosts_of_launcher())
    if hosts:
        _LOGGER.warning(
            "ssh to %s has no keepalive: where the network to a host is cut, horovodrun never "
            "notices, and the job waits for good. On the launching host, %s.",
            ", ".join(hosts),
            FIX,
        )


def keepalive_seconds(host: str) -> int | None:
    """After how much silence ssh asks whether a host is still there; 0: never, None: unknown."""
    try:
        answer = subprocess.run(
            ["ssh", "-G", host], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in answer.stdout.splitlines():
        name, _, value = line.partition(" ")
        if name == "serveraliveinterval" and value.isdecimal():
            return int(value)
    return None


def _hosts_of_launcher() -> list[str]:
    """The hosts that the horovodrun above this process has started ranks on, by ssh."""
    try:
        above = psutil.Process().parents()
        launchers = [one for one in above if any("horovodrun" in word for word in one.cmdline())]
        below = launchers[-1].children(recursive=True) if launchers else []
        return sorted({host for one in below if (host := _destination(one.cmdline()))})
    except psutil.Error:  # Another user's, or it has ended.
        return []


def _destination(words: Sequence[str]) -> str:
    """The host of a command of ssh; empty if it is another command.

    Example:
        >>> _destination(["ssh", "-o", "PasswordAuthentication=no", "-p", "22", "node2", "cd /x"])
        'node2'
    """
    if not words or words[0].rpartition("/")[2] != "ssh":
        return ""
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            return word
        if word in ("-o", "-p", "-i", "-l", "-F"):
            next(rest, None)
    return ""
