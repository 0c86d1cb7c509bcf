"""Emulated hosts: made, connected, disturbed and removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heterogeneous.cgroup_quota import CgroupQuota

from hosts.description import Host, Link, cpu_shares
from hosts.host_files import write_host_files

_FOLDER = Path(__file__).resolve().parent
_REPOSITORY = _FOLDER.parents[1]
_NETWORK = "10.99.0"
_SECONDS_TO_START = 30.0
_NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")
_NO_LIMIT = "10gbit"

# Ends what is left of the hosts when this process has ended, however it has: its input closes then.
_SWEEP = """
read -r _
for _ in $(seq 100); do rm -rf "$1"; rmdir "${@:2}" 2>/dev/null; sleep 0.1
  for path; do [[ -e $path ]] && continue 2; done; break; done
"""


class Cluster:
    """Hosts with a network of their own, which nothing outside of them is connected to.

    All processes of the hosts end with this object, and with this process however it ends: each
    host's first process reads a pipe that closes then. Files of hosts lie in memory.

    Args:
        hosts: All hosts that there may be; `start` starts them.
        visible: Folders that all hosts have alike; the repository is one of them. What else is in
            /tmp, /run and the home folder each host has for itself.
        ssh_options: Lines for the hosts' ssh configuration, such as "ServerAliveInterval 5".

    Raises:
        OSError: If a limit of CPU time is needed and no control group can be made.
    """

    def __init__(
        self, hosts: Sequence[Host], visible: Sequence[Path] = (), ssh_options: Sequence[str] = ()
    ) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.addresses = {
            host.name: f"{_NETWORK}.{number}" for number, host in enumerate(hosts, start=1)
        }
        self._ports = {host.name: f"port{number}" for number, host in enumerate(hosts, start=1)}
        self._visible = [str(path.resolve()) for path in (_REPOSITORY, Path.cwd(), *visible)]
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._forwarders: dict[str, subprocess.Popen[str]] = {}
        self._cut: set[str] = set()
        self._folder = Path(tempfile.mkdtemp(prefix="hvd_dbs_hosts_"))
        self._quota = self._make_quota()
        groups = [*self._quota.folders, self._quota.folders[0].parent] if self._quota else []
        self._sweeper = self._hold(
            ["bash", "-c", _SWEEP, "sweep", str(self._folder), *map(str, groups)]
        )
        try:
            write_host_files(self._folder, self.addresses, ssh_options)
            self._switch = self._hold(["unshare", "--net", "--fork", "--kill-child", "cat"])
            self._in_switch("ip link add br0 type bridge forward_delay 0 stp_state 0")
            self._in_switch("ip link set br0 up")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *names: str) -> None:
        """Starts hosts, or starts them anew, and waits until ssh answers on each."""
        for name in names:
            self._begin(name)
        for name in names:
            self._wait_for(name)

    def power_off(self, name: str) -> None:
        """Ends a host at once, as when its power fails: nobody is sent a farewell."""
        self._first_process(name)
        process = self._running.pop(name)
        for one in (process, self._forwarders.pop(name, None)):
            if one is not None:
                _end(one)
        self._cut.discard(name)
        self._in_switch(f"ip link delete {self._ports[name]}", check=False)

    def is_running(self, name: str) -> bool:
        """Whether a host is on."""
        return name in self._running

    def cut(self, name: str) -> None:
        """Lets no packet to or from a host through; its own end of the link stays up."""
        self._cut.add(name)
        self._in_switch(f"ip link set {self._ports[name]} nomaster")

    def heal(self, name: str) -> None:
        """Ends a cut."""
        self._cut.discard(name)
        self._in_switch(f"ip link set {self._ports[name]} master br0")

    def set_rate(self, name: str, rate: float | None) -> None:
        """Changes the rate of a host's link, in bits a second; None: no limit."""
        limit = _NO_LIMIT if rate is None else f"{rate:.0f}bit"
        # A burst of 4 ms, and a queue of 100 ms: what a switch has for each port.
        burst = max(65536, int((rate or 1e10) * 0.004 / 8))
        shape = f"root tbf rate {limit} burst {burst} latency 100ms"
        self._in_switch(f"tc qdisc replace dev {self._ports[name]} {shape}")
        self._in_host(name, f"tc qdisc replace dev eth0 {shape}")

    def block_udp(self, name: str) -> None:
        """Drops all UDP that a host sends to others, as firewalls do."""
        self._in_host(name, f"ip rule add ipproto udp to {_NETWORK}.0/24 blackhole")

    def add_interface(self, name: str, interface: str, address: str) -> None:
        """Gives a host an interface that leads nowhere, such as Docker's."""
        self._in_host(name, f"ip link add {interface} type bridge")
        self._in_host(name, f"ip address add {address} dev {interface}")
        self._in_host(name, f"ip link set {interface} up")

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        """The words that run a command on a host, for a process of this machine."""
        enter = ["nsenter", "--target", str(self._first_process(name)), "--net", "--mount"]
        enter += ["--uts", "--ipc", "--pid", "--", "env", f"--chdir={Path.cwd()}"]
        if self.hosts[name].cores:
            enter = ["taskset", "--cpu-list", ",".join(map(str, self.hosts[name].cores)), *enter]
        if self._quota is not None:
            group = self._quota.folders[list(self.hosts).index(name)]
            enter = ["bash", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', str(group), *enter]
        return [*enter, *words]

    def run(
        self, name: str, words: Sequence[str], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on a host to its end; `options` are those of `subprocess.run`."""
        environment = options.pop("env", None) or self.environment()
        return subprocess.run(
            self.command(name, words), env=environment, text=True, check=False, **options
        )

    def environment(self) -> dict[str, str]:
        """This process's environment as on a host, which has a home of its own."""
        kept = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
        return {**kept, "HOME": "/run/home"}

    def files_of(self, name: str) -> Path:
        """A host's file system, as seen from here: its `/tmp` is `files_of(name) / "tmp"`."""
        return Path(f"/proc/{self._first_process(name)}/root")

    def processes(self, name: str) -> dict[int, int]:
        """The processes of a host: their numbers on this machine, by their numbers on the host."""
        found = {}
        own = os.readlink(f"/proc/{self._first_process(name)}/ns/pid")
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, StopIteration):  # It has ended meanwhile.
                if os.readlink(folder / "ns/pid") == own:
                    lines = (folder / "status").read_text().splitlines()
                    numbers = next(line for line in lines if line.startswith("NSpid:")).split()
                    found[int(numbers[-1])] = int(folder.name)
        return found

    def kill(self, name: str, process: int, number: int = signal.SIGKILL) -> None:
        """Sends a signal to a process of a host, by its number there; nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.kill(self.processes(name)[process], number)

    def close(self) -> None:
        """Ends all hosts, and leaves nothing of them."""
        held = [*self._running.values(), *self._forwarders.values()]
        for process in [*held, *([self._switch] if hasattr(self, "_switch") else [])]:
            _end(process)
        self._running.clear()
        self._forwarders.clear()
        if self._quota is not None:
            self._quota.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        _end(self._sweeper)

    def _make_quota(self) -> CgroupQuota | None:
        """A limit for each host, where one of them is slower than the others."""
        hosts = list(self.hosts.values())
        if all(host.speed == 1 for host in hosts):
            return None
        num_cores = len(os.sched_getaffinity(0))
        quota = CgroupQuota(len(hosts), whole=num_cores)
        for number, share in enumerate(cpu_shares(hosts, num_cores)):
            quota.set_share(number, share)
        return quota

    def _begin(self, name: str) -> None:
        host, port = self.hosts[name], self._ports[name]
        script = ["bash", str(_FOLDER / "host.sh"), name, self.addresses[name], str(self._folder)]
        words = ["unshare", *_NAMESPACES, "--fork", "--kill-child", *script, *self._visible]
        self._running[name] = self._hold(words)
        process = self._first_process(name)
        if self._quota is not None:
            self._quota.add(list(self.hosts).index(name), process)
        if host.cores:
            os.sched_setaffinity(process, host.cores)
        if host.link.needs_forwarder:
            self._forwarders[name] = self._forward(f"h{port}", port, host.link)
        else:
            self._in_switch(f"ip link add h{port} type veth peer name {port}")
        # An address of its own: the others still know it when the host comes back.
        number = list(self.hosts).index(name) + 1
        self._in_switch(f"ip link set h{port} address 02:00:00:00:00:{number:02x}")
        self._in_switch(f"ip link set {port} master br0 up")
        self._in_switch(f"ip link set h{port} netns {process} name eth0")

    def _wait_for(self, name: str) -> None:
        ready = self.files_of(name) / "run/ready"
        end = time.monotonic() + _SECONDS_TO_START
        while not ready.exists():
            if self._running[name].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"host {name} has not started; what it printed is above.")
            time.sleep(0.02)
        if (rate := self.hosts[name].link.rate) is not None:
            self.set_rate(name, rate)

    def _forward(self, one: str, other: str, link: Link) -> subprocess.Popen[str]:
        words = [sys.executable, str(_FOLDER / "forwarder.py"), one, other]
        enter = ["nsenter", "--target", str(_child_of(self._switch)), "--net", "--"]
        process = self._hold([*enter, *words, str(link.delay), str(link.loss)], subprocess.PIPE)
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise RuntimeError("the forwarder of a link with delay or loss has not started.")
        return process

    def _first_process(self, name: str) -> int:
        if name not in self._running:
            raise RuntimeError(f"host {name} is off.")
        return _child_of(self._running[name])

    def _in_switch(self, words: str, check: bool = True) -> None:
        self._in_network_of(_child_of(self._switch), words, check)

    def _in_host(self, name: str, words: str) -> None:
        self._in_network_of(self._first_process(name), words, check=True)

    def _in_network_of(self, process: int, words: str, check: bool) -> None:
        enter = ["nsenter", "--target", str(process), "--net", "--", *words.split()]
        done = subprocess.run(enter, capture_output=True, text=True, timeout=30, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"{words}: {done.stderr.strip()}")

    def _hold(self, words: Sequence[str], stdout: int | None = None) -> subprocess.Popen[str]:
        """Starts a process that ends, at the latest, with this one: with its standard input."""
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=stdout, text=True, start_new_session=True
        )


def _child_of(process: subprocess.Popen[str]) -> int:
    """The process that `unshare --fork` has started."""
    end = time.monotonic() + _SECONDS_TO_START
    while process.poll() is None and time.monotonic() < end:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.005)
    raise RuntimeError("a host has ended, or has not started.")


def _end(process: subprocess.Popen[str]) -> None:
    """Closes a held process's input, and kills it where that is not enough."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
    if process.stdout is not None:
        process.stdout.close()
