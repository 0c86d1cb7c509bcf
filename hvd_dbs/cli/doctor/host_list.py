"""The hosts of a job, as horovodrun and mpirun are given them; pure."""

from __future__ import annotations

import re

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SLOTS = re.compile(r":[1-9][0-9]*|(?:(?:slots|max[-_]slots)\s*=\s*[1-9][0-9]*\s*)*")


def parse_hosts(text: str) -> list[str]:
    """Hosts, from a text such as "node1:2,node2:2"; each once.

    Raises:
        ValueError: If it is something else.

    Example:
        >>> parse_hosts("node1:2,node2")
        ['node1', 'node2']
    """
    return _hosts([(part, "--hosts") for part in text.split(",")])


def parse_hostfile(text: str, name: str) -> list[str]:
    r"""Hosts, from the text of a file with a host a line; each once.

    Args:
        text: Lines such as "node1 slots=2" or "node1:2"; what follows a # is left out.
        name: Of the file.

    Raises:
        ValueError: If it is something else.

    Example:
        >>> parse_hostfile("node1 slots=2\n# two more\nnode2:2\n", "hosts.txt")
        ['node1', 'node2']
    """
    lines = [line.partition("#")[0] for line in text.splitlines()]
    return _hosts([(line, name) for line in lines if line.strip()])


def _hosts(parts: list[tuple[str, str]]) -> list[str]:
    hosts: dict[str, None] = {}
    for part, source in parts:
        text = part.strip()
        host = re.split(r"[\s:]", text)[0]
        if not _HOST.fullmatch(host) or not _SLOTS.fullmatch(text[len(host) :].strip()):
            raise ValueError(
                f"{source}: {text!r} is no host; expected a name and the ranks there, such as "
                f"node1:2, as horovodrun -H and mpirun -H are given them."
            )
        hosts[host] = None
    if not hosts:
        raise ValueError(f"{parts[0][1] if parts else 'the host file'} names no host.")
    return list(hosts)
