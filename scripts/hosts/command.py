"""The command line of `scripts/hosts.sh`."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from hosts.cluster import Cluster
from hosts.description import Host, parse_hosts, parse_link
from hosts.machine import what_is_missing

PROGRAM = "hosts.sh"
EXIT_USAGE = 2

DESCRIPTION = """\
Runs a command on the first of several emulated hosts of this machine. Each host has a network
interface (eth0), a name, an ssh server that lets the others in, a home folder, /tmp and processes
of its own; this repository is visible on all of them. Nothing outside can be reached, and nothing
is left when the command ends. Takes root.
"""
EPILOG = """\
$HOSTS holds the list for horovodrun -H and mpirun -H. Examples:
  scripts/hosts.sh --hosts a:2,b:2 -- horovodrun --gloo -np 4 -H a:2,b:2 python train.py
  scripts/hosts.sh --hosts a:2,b:2 --slow b=0.5 --link b=100mbit,20ms -- horovodrun ...
  scripts/hosts.sh --hosts a,b,c --at 30:cut:b --at 60:heal:b -- horovodrun --gloo ...
  scripts/hosts.sh --hosts a,b -- bash                # a shell on host a
"""


@dataclass(frozen=True)
class Event:
    """Something that happens to a host while the command runs."""

    seconds: float
    action: str
    host: str


ACTIONS: dict[str, Callable[[Cluster, str], None]] = {
    "cut": Cluster.cut,
    "heal": Cluster.heal,
    "off": Cluster.power_off,
    "on": Cluster.start,
}
"""After "on" a host gets what `_equip` gives it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage and message."""
        print(f"{PROGRAM}: error: {message}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


@dataclass(frozen=True)
class Request:
    """What the user asked for; every field is valid and they fit together."""

    hosts: tuple[Host, ...]
    off: tuple[str, ...]
    events: tuple[Event, ...]
    visible: tuple[Path, ...]
    ssh_options: tuple[str, ...]
    udp_blocked: tuple[str, ...]
    has_docker: bool
    command: tuple[str, ...]


def parse_request(arguments: Sequence[str]) -> Request:
    """Parses the command line; prints one line and exits with 2 where it is wrong."""
    arguments = list(arguments)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = _parser()
    given = parser.parse_args(arguments[:split])
    command = arguments[split + 1 :]
    if not command:
        parser.error("the command is missing; add it after --, such as -- horovodrun -np 4 ...")
    try:
        hosts = {host.name: host for host in parse_hosts(given.hosts)}
        for name, text in _by_host(given.slow, hosts, "--slow"):
            hosts[name] = replace(hosts[name], speed=_speed(text))
        for name, text in _by_host(given.cores, hosts, "--cores"):
            hosts[name] = replace(hosts[name], cores=_cores(text))
        for name, text in _by_host(given.link, hosts, "--link"):
            hosts[name] = replace(hosts[name], link=parse_link(text))
        events = [_event(text, hosts) for text in given.at]
        for name in (*given.off, *given.block_udp):
            _require_host(name, hosts)
        if next(iter(hosts)) in given.off:
            raise ValueError("the first host runs the command, so it cannot be off")
    except ValueError as error:
        parser.error(f"{error}.")
    return Request(
        tuple(hosts.values()),
        tuple(given.off),
        tuple(sorted(events, key=lambda event: event.seconds)),
        tuple(given.visible),
        tuple(given.ssh_option),
        tuple(given.block_udp),
        given.docker,
        tuple(command),
    )


def main(arguments: Sequence[str]) -> int:
    """Runs the command; its exit code."""
    request = parse_request(arguments)
    if reason := what_is_missing(any(host.link.needs_forwarder for host in request.hosts)):
        print(f"{PROGRAM}: error: hosts cannot be emulated here: {reason}.", file=sys.stderr)
        return EXIT_USAGE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with Cluster(request.hosts, request.visible, request.ssh_options) as cluster:
            return _run(cluster, request)
    except (OSError, RuntimeError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1


def _run(cluster: Cluster, request: Request) -> int:
    names = [host.name for host in request.hosts if host.name not in request.off]
    cluster.start(*names)
    for name in names:
        _equip(cluster, name, request)
    listed = ",".join(f"{host.name}:{host.slots}" for host in request.hosts)
    process = subprocess.Popen(
        cluster.command(request.hosts[0].name, request.command),
        env={**cluster.environment(), "HOSTS": listed},
    )
    over = threading.Event()
    thread = threading.Thread(target=_disturb, args=(cluster, request, over))
    thread.start()
    try:
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # It has got the signal as well.
                return _exit_code(process.wait())
    finally:
        over.set()
        thread.join()
        if process.poll() is None:
            process.kill()


def _equip(cluster: Cluster, name: str, request: Request) -> None:
    """Gives a host that has started what it loses when it is switched off."""
    if request.has_docker:
        cluster.add_interface(name, "docker0", "172.17.0.1/16")
    if name in request.udp_blocked:
        cluster.block_udp(name)


def _disturb(cluster: Cluster, request: Request, over: threading.Event) -> None:
    begin = time.monotonic()
    for event in request.events:
        if over.wait(max(0.0, event.seconds - (time.monotonic() - begin))):
            return
        try:
            ACTIONS[event.action](cluster, event.host)
            if event.action == "on":
                _equip(cluster, event.host, request)
            print(f"{PROGRAM}: {event.seconds:g} s: {event.action} {event.host}", file=sys.stderr)
        except (RuntimeError, KeyError, OSError) as error:
            print(f"{PROGRAM}: {event.action} {event.host}: {error}", file=sys.stderr)


def _exit_code(code: int) -> int:
    """As a shell gives it: 128 and the signal's number where one has ended the process."""
    return code if code >= 0 else 128 - code


def _parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} --hosts NAME:SLOTS,... [options] -- COMMAND ...",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--hosts", required=True, help="the hosts, such as a:2,b:2; the command runs on the first")
    several = {"action": "append", "default": []}
    add("--slow", **several, metavar="HOST=SPEED", help="0.5: half a core for each of its slots")
    add("--cores", **several, metavar="HOST=0-1,3", help="the machine's cores that it may use")
    text = "rate, delay and loss of its link in each direction, such as b=100mbit,20ms,1%%"
    add("--link", **several, metavar="HOST=LINK", help=text)
    text = "after so many seconds: cut or heal its network, switch it off or on"
    add("--at", **several, metavar="SECONDS:ACTION:HOST", help=text)
    add("--off", **several, metavar="HOST", help="this host is off at first")
    add("--block-udp", **several, metavar="HOST", help="drop the UDP that it sends to the others")
    add("--docker", action="store_true", help="give all hosts a docker0 with the same address")
    text = "a line for the hosts' ~/.ssh/config, such as 'ServerAliveInterval 5'"
    add("--ssh-option", **several, metavar="LINE", help=text)
    text = "a folder in /tmp, /run or /dev/shm that all hosts see"
    add("--visible", **several, type=Path, metavar="FOLDER", help=text)
    return parser


def _by_host(given: Sequence[str], hosts: dict[str, Host], option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{option} {text!r} is not HOST=VALUE")
        _require_host(name, hosts)
        pairs.append((name, value))
    return pairs


def _require_host(name: str, hosts: dict[str, Host]) -> None:
    if name not in hosts:
        raise ValueError(f"{name!r} is not one of the hosts {', '.join(hosts)}")


def _speed(text: str) -> float:
    if not re.fullmatch(r"\d*\.?\d+", text) or not 0 < float(text) <= 1:
        raise ValueError(
            f"speed {text!r} is not a number above 0 and up to 1, which is a whole core"
        )
    return float(text)


def _cores(text: str) -> tuple[int, ...]:
    cores: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ValueError(f"{text!r} is no list of cores, such as 0-1,3")
        cores += range(int(match[1]), int(match[2] or match[1]) + 1)
    absent = set(cores) - os.sched_getaffinity(0)
    if absent or not cores:
        raise ValueError(f"this process may not use cores {sorted(absent)}")
    return tuple(cores)


def _event(text: str, hosts: dict[str, Host]) -> Event:
    parts = text.split(":")
    if len(parts) != 3 or not re.fullmatch(r"\d+(\.\d*)?", parts[0]) or parts[1] not in ACTIONS:
        raise ValueError(f"--at {text!r} is not SECONDS:ACTION:HOST with {', '.join(ACTIONS)}")
    _require_host(parts[2], hosts)
    return Event(float(parts[0]), parts[1], parts[2])
