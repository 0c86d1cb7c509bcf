"""Emulated hosts: what the command line takes, and what hosts are like."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from hosts import command, machine
from hosts.cluster import Cluster
from hosts.description import Host, Link, cpu_shares, parse_hosts, parse_link

from tests.hosts import needs_hosts
from tests.jobs import REPOSITORY, kill_all_of, python

SCRIPT = str(REPOSITORY / "scripts/hosts.sh")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--hosts", "a:2"], "command is missing"),
        (["--hosts", "A:2", "--", "true"], "'A' is no host name"),
        (["--hosts", "a:0", "--", "true"], "no number of slots"),
        (["--hosts", "a,b,a", "--", "true"], "comes twice"),
        (["--hosts", "a,b", "--slow", "c=1", "--", "true"], "'c' is not one of the hosts a, b"),
        (["--hosts", "a,b", "--slow", "b", "--", "true"], "is not HOST=VALUE"),
        (["--hosts", "a,b", "--slow", "b=2", "--", "true"], "above 0 and up to 1"),
        (["--hosts", "a,b", "--link", "b=fast", "--", "true"], "'fast' is no rate"),
        (["--hosts", "a,b", "--at", "5:burn:b", "--", "true"], "SECONDS:ACTION:HOST"),
        (["--hosts", "a,b", "--off", "a", "--", "true"], "cannot be off"),
        (["--hosts", "a,b", "--cores", "b=9999", "--", "true"], "may not use cores [9999]"),
    ],
)
def test_a_wrong_command_line_is_named(arguments, part, capsys):
    with pytest.raises(SystemExit) as end:
        command.parse_request(arguments)
    assert end.value.code == 2
    assert part in capsys.readouterr().err


def test_descriptions():
    assert [(host.name, host.slots) for host in parse_hosts("a:2,b")] == [("a", 2), ("b", 1)]
    assert parse_link("1%,1.5gbit,20ms") == Link(1.5e9, 0.02, 0.01)
    hosts = [Host("a", 2), Host("b", 1, speed=0.5)]
    assert cpu_shares(hosts, num_cores=4) == [2, 0.5]
    assert cpu_shares(hosts, num_cores=1) == pytest.approx([0.8, 0.2])


def test_who_is_not_root_is_sent_to_sudo(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "sudo" in machine.what_is_missing()


def test_a_missing_tool_is_named_with_its_package(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "_SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install iproute2 openssh-client openssh-server" in machine.what_is_missing()


@pytest.fixture(scope="module")
def cluster():
    hosts = [Host("a", 2), Host("b"), Host("far", link=Link(delay=0.05)), Host("later")]
    with Cluster(hosts, ssh_options=["ConnectTimeout 20"]) as cluster:
        cluster.start("a", "b", "far")
        yield cluster


@needs_hosts
class TestHosts:
    def shell(self, cluster, host, words):
        done = cluster.run(host, ["bash", "-c", words], capture_output=True, timeout=60)
        return done.returncode, done.stdout.strip()

    def test_each_is_a_host_of_its_own(self, cluster):
        assert self.shell(cluster, "a", "hostname; ssh b hostname; ssh far hostname") == (
            0,
            "a\nb\nfar",
        )
        self.shell(cluster, "a", "echo a >/tmp/mine; echo a >~/mine; echo a >/dev/shm/mine")
        assert self.shell(cluster, "b", "ls /tmp/mine ~/mine /dev/shm/mine 2>/dev/null") == (2, "")
        assert (cluster.files_of("a") / "tmp/mine").read_text() == "a\n"
        assert self.shell(cluster, "b", f"ls {REPOSITORY}/setup.py")[0] == 0
        # Another host's processes are nowhere to be seen.
        assert self.shell(cluster, "a", "ps ax | grep -c '[s]shd: /usr'") == (0, "1")

    def test_a_cut_lets_nothing_through_until_it_is_healed(self, cluster):
        cluster.cut("b")
        assert self.shell(cluster, "a", "ssh -o ConnectTimeout=2 b hostname")[0] != 0
        assert "LOWER_UP" in self.shell(cluster, "b", "ip link show eth0")[1]
        assert self.shell(cluster, "a", "ssh far hostname") == (0, "far")
        cluster.heal("b")
        assert self.shell(cluster, "a", "ssh b hostname") == (0, "b")

    def test_a_host_goes_and_comes_back_under_its_name(self, cluster):
        cluster.start("later")
        assert self.shell(cluster, "a", "ssh later hostname") == (0, "later")
        cluster.power_off("later")
        assert not cluster.is_running("later")
        assert self.shell(cluster, "a", "ssh -o ConnectTimeout=2 later hostname")[0] != 0
        cluster.start("later")
        assert self.shell(cluster, "a", "ssh later hostname") == (0, "later")

    def test_a_delay_is_had_in_both_directions(self, cluster):
        connect = (
            "import socket, time; begin = time.time(); "
            "socket.create_connection(('far', 22), 10); print(time.time() - begin)"
        )
        done = cluster.run("a", python("-c", connect), capture_output=True, timeout=60)
        assert float(done.stdout) >= 0.1

    def test_a_process_is_killed_by_its_number_on_the_host(self, cluster):
        words = cluster.command("b", ["sleep", "300"])
        sleeper = subprocess.Popen(words, env=cluster.environment())
        try:
            end = time.monotonic() + 20
            found = []
            while not found and time.monotonic() < end:
                listed = self.shell(cluster, "b", "pgrep -f '^sleep 300'")[1]
                found = [int(number) for number in listed.split()]
            cluster.kill("b", found[0])
            assert sleeper.wait(20) != 0
        finally:
            kill_all_of(sleeper)

    def test_udp_is_blocked_and_nothing_else(self, cluster):
        send = "echo x >/dev/udp/10.99.0.1/9"
        cluster.block_udp("far")
        receive = (
            "import socket; s = socket.socket(2, 2); s.bind(('10.99.0.1', 9)); s.settimeout(2); "
            "print(s.recv(9))"
        )
        words = cluster.command("a", python("-c", receive))
        receiver = subprocess.Popen(words, env=cluster.environment(), stderr=subprocess.DEVNULL)
        try:
            self.shell(cluster, "far", f"for _ in 1 2 3 4 5 6; do {send}; sleep 0.3; done")
            assert receiver.wait(20) != 0
        finally:
            kill_all_of(receiver)
        assert self.shell(cluster, "far", "ssh a hostname") == (0, "a")


@needs_hosts
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(number, tmp_path):
    facts = tmp_path / "facts"
    show = f"hostname >{facts}; sleep 300"
    arguments = ["--hosts", "a:1,b:1", "--slow", "b=0.5", "--link", "b=1gbit,1ms"]
    process = subprocess.Popen(
        [SCRIPT, *arguments, "--visible", str(tmp_path), "--", "bash", "-c", show],
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 60
        while not (facts.exists() and facts.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        assert facts.read_text() == "a\n"
        inside = psutil.Process(process.pid).children(recursive=True)
        folders = [Path(one) for one in _folders_of(process.pid)]
        assert folders
        assert all(folder.exists() for folder in folders)
        os.kill(process.pid, number)
        process.wait(30)
        _, alive = psutil.wait_procs(inside, timeout=30)
        assert not alive
        end = time.monotonic() + 30
        while any(folder.exists() for folder in folders) and time.monotonic() < end:
            time.sleep(0.05)
        assert [folder for folder in folders if folder.exists()] == []
    finally:
        kill_all_of(process)


def _folders_of(pid: int) -> list[str]:
    """The folders that the sweeper of a running hosts.sh is to remove."""
    for one in psutil.Process(pid).children():
        words = one.cmdline()
        if "sweep" in words:
            return words[words.index("sweep") + 1 :]
    return []


@needs_hosts
def test_the_command_gets_the_hosts_and_its_exit_code_counts():
    done = subprocess.run(
        [SCRIPT, "--hosts", "a:2,b", "--", "bash", "-c", "echo $HOSTS; exit 7"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (7, "a:2,b:1")
    assert done.stderr == ""


@needs_hosts
def test_a_host_that_is_switched_on_has_all_that_it_was_to_have():
    options = ["--docker", "--off", "b", "--block-udp", "b", "--at", "0:on:b"]
    look = "ip -br address show docker0 && ip rule | grep blackhole"
    loop = f"for _ in $(seq 100); do ssh b '{look}' 2>/dev/null && exit; sleep 0.1; done; exit 1"
    words = [SCRIPT, "--hosts", "a,b", *options, "--", "bash", "-c", loop]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "172.17.0.1/16" in done.stdout
