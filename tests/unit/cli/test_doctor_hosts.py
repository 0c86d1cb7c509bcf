"""`hvd-dbs doctor --hosts`: which hosts it is given, and what it does with hosts of all kinds."""

from __future__ import annotations

import os
import shutil
import stat
import sys

import pytest
from click.testing import CliRunner

from hvd_dbs.cli.doctor import host_check
from hvd_dbs.cli.doctor.host_list import parse_hostfile, parse_hosts
from hvd_dbs.cli.doctor.host_probe import addresses_of, interfaces, probe
from hvd_dbs.cli.main import main


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:2,b:2", ["a", "b"]),
        ("a", ["a"]),
        (" node-1.x:4 , 10.0.0.2", ["node-1.x", "10.0.0.2"]),
        ("a:2,a:2", ["a"]),
    ],
)
def test_lists_of_hosts(text, hosts):
    assert parse_hosts(text) == hosts
    lines = text.replace(",", "\n# more\n\n").replace(":", " slots=")
    assert parse_hostfile(lines, "hosts.txt") == hosts


def test_host_files_of_open_mpi():
    assert parse_hostfile("a slots=2 max_slots=4\nb max-slots=3\nc slots = 2", "x") == [
        "a",
        "b",
        "c",
    ]


@pytest.mark.parametrize("text", ["", "a,,b", "a:0", "a:x", "-o ProxyCommand=x", "a b", "a;b"])
def test_what_is_no_list_of_hosts(text):
    result = CliRunner().invoke(main, ["doctor", f"--hosts={text}"])
    assert result.exit_code == 2
    assert "is no host; expected a name and the ranks there, such as node1:2" in result.output


def test_wrong_use_is_said(tmp_path):
    file = tmp_path / "hosts.txt"
    file.write_text("# none\n")
    result = CliRunner().invoke(main, ["doctor", "--hostfile", str(file)])
    assert result.exit_code == 2 and "names no host" in result.output
    result = CliRunner().invoke(main, ["doctor", "--hostfile", str(file), "--hosts", "a"])
    assert result.exit_code == 2 and "Give one of them" in result.output


SSH = """#!/bin/sh
for last; do :; done
if [ "$1" = -G ]; then
    [ "$2" = prefixed ] && echo "serveraliveinterval 5" || echo "serveraliveinterval 0"
    exit
fi
[ "$1 $2" = "-o BatchMode=yes" ] || exit 7
case "$5" in
    denied) echo "Welcome" >&2; echo "me@denied: Permission denied (publickey)." >&2; exit 255;;
    silent) sleep 300;;
    bare) echo "Last login: today"; exec sh -c "$(echo "$last" | sed 's,@PYTHON@,/no/python,g')";;
    prefixed) echo "Last login: today"; PATH=@TOOLS@ exec sh -c "$last";;
esac
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """This machine with an Open MPI and an ssh of its own; its names are those of the test."""
    tools, programs = tmp_path / "tools", tmp_path / "mpi" / "bin"
    tools.mkdir()
    programs.mkdir(parents=True)
    for tool in ("sh", "head"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    scripts = {
        programs / "mpirun": "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.8'\n",
        programs / "orted": "#!/bin/sh\n",
        programs / "ssh": SSH.replace("@TOOLS@", str(tools)).replace("@PYTHON@", sys.executable),
    }
    for path, text in scripts.items():
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    addresses = {"self": ["127.0.0.1"], "nobody": []}
    monkeypatch.setattr(host_check, "addresses_of", lambda name: addresses.get(name, ["192.0.2.7"]))
    return tmp_path


def test_hosts_of_all_kinds_are_looked_at_at_once(machine):
    hosts = "self:2,denied:2,bare:1,prefixed:1,nobody:2"
    result = CliRunner().invoke(main, ["doctor", "--hosts", hosts])
    assert result.exit_code == 1, result.output
    lines = result.output.splitlines()
    prefix = machine / "mpi"
    for expected in (
        "problem  denied: me@denied: Permission denied (publickey).",
        "         fix: ssh-keygen if you have no key yet, then ssh-copy-id denied",
        f"problem  bare: there is no {sys.executable}",
        "problem  nobody: its name is unknown on this machine",
        "ok       bare, prefixed: ssh gets in without a password",
        "ok       bare: orted of mpirun (Open MPI) 4.1.8",
        "warning  prefixed: orted is not on the PATH that ssh gives a command: mpirun says it is "
        "not found",
        f'         fix: mpirun --prefix {prefix}, horovodrun --mpi-args="--prefix {prefix}", or '
        "horovodrun --gloo",
    ):
        assert expected in lines, result.output
    assert any(line.startswith("ok       self, prefixed: as here: Python") for line in lines)
    assert any(line.startswith("warning  bare: ssh does not notice") for line in lines)
    assert lines[-1].startswith("a job would fail on 5 hosts: 3 problems, ")


def test_a_host_that_never_answers_is_not_waited_for(machine):
    result = CliRunner().invoke(main, ["doctor", "--hosts", "silent", "--timeout", "1"])
    assert result.exit_code == 1
    assert "problem  silent: no answer within 1 s" in result.output
    result = CliRunner().invoke(main, ["doctor", "--hosts", "self", "--timeout", "inf"])
    assert result.exit_code == 2 and "inf is not in the range" in result.output


def test_this_machine_alone_needs_no_ssh(machine):
    (machine / "mpi" / "bin" / "ssh").unlink()
    result = CliRunner().invoke(main, ["doctor", "--hosts", "self:4"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "a job can be started on 1 host"


def test_the_probe_knows_its_host():
    found = probe(["localhost", "no.such.name.invalid"])
    assert "127.0.0.1" in found["addresses"]["localhost"]
    assert found["addresses"]["no.such.name.invalid"] == []
    assert found["versions"]["Python"].count(".") == 2
    assert addresses_of("a" * 300) == []
    assert all(not address.startswith("127.") for address, _ in interfaces().values())
