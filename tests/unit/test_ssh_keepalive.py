"""Whether ssh would notice that a host is cut off."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hvd_dbs.cli.main import main
from hvd_dbs.elastic import ssh_keepalive
from tests.jobs import job_environment, kill_all_of

ANSWERS = """#!/bin/sh
[ "$1" = -G ] || exit 9
case $2 in
  kept) echo serveraliveinterval 5 ;;
  odd) exit 1 ;;
  *) echo user me; echo serveraliveinterval 0 ;;
esac
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """A program of this name that answers for hosts."""
    program = tmp_path / "ssh"
    program.write_text(ANSWERS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_hosts_without_a_keepalive_are_found(ssh):
    assert ssh_keepalive.hosts_without_keepalive(["kept", "cut", "odd", "localhost"]) == ["cut"]


def test_no_ssh_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ssh_keepalive.hosts_without_keepalive(["node1"]) == []


@pytest.mark.parametrize(
    ("command", "host"),
    [
        ("ssh -o A=no -o B=no node2 -p 22 cd", "node2"),
        ("/usr/bin/ssh -i key -p 22 node3 true", "node3"),
        ("sshd -D node2", ""),
        ("", ""),
        ("ssh -p", ""),
    ],
)
def test_the_host_of_a_command(command, host):
    assert ssh_keepalive._destination(command.split()) == host


def test_check_hosts_asks_for_it(ssh):
    script = ssh / "discover.sh"
    script.write_text("#!/bin/sh\necho kept:2; echo cut:1\n")
    script.chmod(0o755)
    output = CliRunner().invoke(main, ["check-hosts", str(script)]).output
    assert "warning: ssh to cut has no keepalive" in output
    assert "ServerAliveInterval 5" in output


LAUNCHER = """
import subprocess, sys
# Named "ssh", to a host "300".
subprocess.Popen(["bash", "-c", "exec -a ssh sleep 300"], stderr=subprocess.DEVNULL)
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""
RANK = """
import logging, time
from hvd_dbs.elastic import ssh_keepalive
logging.basicConfig()
end = time.monotonic() + 20
while not ssh_keepalive._hosts_of_launcher() and time.monotonic() < end:
    time.sleep(0.05)
ssh_keepalive.warn_without_keepalive()
"""


def test_a_rank_beside_the_launcher_warns(ssh):
    launcher = ssh / "horovodrun"
    launcher.write_text(LAUNCHER)
    environment = {**job_environment(), "PATH": os.environ["PATH"]}
    process = subprocess.Popen(
        [sys.executable, str(launcher), RANK],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=60)[1] if process.wait(60) == 0 else ""
        assert "ssh to 300 has no keepalive" in said
    finally:
        kill_all_of(process)


def test_a_process_without_a_launcher_says_nothing(ssh, caplog):
    with caplog.at_level(logging.WARNING):
        ssh_keepalive.warn_without_keepalive()
    assert not caplog.records
