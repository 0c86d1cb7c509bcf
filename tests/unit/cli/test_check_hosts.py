"""`hvd-dbs check-hosts`: each way in which a discovery script can be wrong."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from hvd_dbs.cli.main import main


def script(tmp_path, body, mode=0o755):
    path = tmp_path / "hosts.sh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return str(path)


def test_hosts_are_shown(tmp_path):
    path = script(tmp_path, "echo node1:2; echo node2")
    result = CliRunner().invoke(main, ["check-hosts", path, "--slots-per-host", "4"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("node1: 2 ranks\nnode2: 4 ranks\n6 ranks on 2 hosts\n")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo out of order >&2; exit 3", "exit code 3; it says: out of order"),
        ("echo nonsense:words", "'nonsense:words', has 'words' slots; expected a whole number"),
        ("echo a:b:c", "'a:b:c', has 'b:c' slots"),
        ("echo localhost:0", "has '0' slots"),
        ("echo localhost:1; echo hello big world", "line 2"),
        ("echo hello big world", "names no host"),
        ("echo node1", "does not say how many ranks to run there. Print HOST:SLOTS"),
        ("echo node1:1; echo node1:2", "names a host that an earlier line has"),
        ("true", "prints no host"),
        ("sleep 20", "has not ended after 0.5 s"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, body, message):
    result = CliRunner().invoke(main, ["check-hosts", script(tmp_path, body), "--timeout", "0.5"])
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_a_script_that_cannot_be_run(tmp_path):
    path = script(tmp_path, "echo localhost:1", mode=0o644)
    result = CliRunner().invoke(main, ["check-hosts", path])
    assert result.exit_code == 2
    assert "is not executable: chmod +x" in result.output
    result = CliRunner().invoke(main, ["check-hosts", f"{path}.missing"])
    assert result.exit_code == 2
    assert "exit code 127" in result.output


def test_a_script_in_the_current_folder_needs_its_folder(tmp_path, monkeypatch):
    script(tmp_path, "echo localhost:1")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["check-hosts", "hosts.sh"])
    assert result.exit_code == 2
    assert "Give ./hosts.sh, to horovodrun as well." in result.output
    assert CliRunner().invoke(main, ["check-hosts", "./hosts.sh"]).exit_code == 0
