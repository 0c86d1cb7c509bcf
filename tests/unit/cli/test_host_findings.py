"""What `hvd-dbs doctor --hosts` concludes from what it has seen of hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_dbs.cli.doctor.host_check import Here, HostFacts
from hvd_dbs.cli.doctor.host_findings import of_hosts

VERSIONS = {"Python": "3.11.7", "hvd_dbs": "0.2.0", "TensorFlow": "2.21.0", "Horovod": "0.28.1"}
HERE = Here("/env/bin/python", "/env", "mpirun (Open MPI) 4.1.8", VERSIONS)
ORTED = "orted of mpirun (Open MPI) 4.1.8"
NAMES = ("node1", "node2", "node3")


def seen(number, **changes):
    return {
        "host": f"node{number}",
        "versions": VERSIONS,
        "addresses": {name: [f"10.0.0.{i}"] for i, name in enumerate(NAMES, 1) if i != number},
        "interfaces": {"eth0": [f"10.0.0.{number}", "255.255.255.0"]},
        **changes,
    }


def a_host(number, **changes):
    return HostFacts(
        f"node{number}",
        addresses=(f"10.0.0.{number}",),
        is_reached=True,
        has_python=True,
        orted={"PATH": ORTED, "prefix": ORTED},
        seen=seen(number),
        alive_seconds=5,
    ) if not changes else replace(a_host(number), **changes)  # fmt: skip


HOSTS = [a_host(1, is_local=True), a_host(2), a_host(3)]


def not_fine(*hosts, here=HERE):
    return [(one.level, one.text, one.fix) for one in of_hosts(hosts, here) if one.level != "ok"]


def only(*hosts, here=HERE):
    (finding,) = not_fine(*hosts, here=here)
    return finding


def test_where_all_is_well_it_says_so_once():
    findings = of_hosts(HOSTS, HERE)
    assert [(one.level, one.text) for one in findings] == [
        (
            "ok",
            "node1, node2, node3: as here: Python 3.11.7, hvd_dbs 0.2.0, TensorFlow 2.21.0, "
            "Horovod 0.28.1",
        ),
        ("ok", "node2, node3: ssh gets in without a password"),
        ("ok", f"node2, node3: {ORTED}"),
    ]


def test_a_name_that_nobody_knows():
    lost = HostFacts("node2", error="its name is unknown here")
    level, text, fix = only(HOSTS[0], lost)
    assert (level, text) == ("problem", "node2: its name is unknown on this machine")
    assert "/etc/hosts" in fix


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("root@node2: Permission denied (publickey,password).", "ssh-copy-id node2"),
        ("Host key verification failed.", "ssh node2, once by hand"),
        ("ssh: connect to host node2 port 22: Connection refused", "start sshd on node2"),
        ("ssh: connect to host node2 port 22: Connection timed out", "ssh node2 true"),
        ("no answer within 60 s", "firewall"),
        ("ssh: No such file or directory", "ssh node2 true"),
    ],
)
def test_a_host_that_does_not_let_one_in(error, fix):
    shut = HostFacts("node2", addresses=("10.0.0.2",), error=error)
    level, text, found = only(HOSTS[0], shut)
    assert (level, text) == ("problem", f"node2: {error}")
    assert fix in found


def test_an_environment_that_is_missing():
    bare = a_host(2, has_python=False, seen=None)
    level, text, fix = only(HOSTS[0], bare)
    assert (level, text) == ("problem", "node2: there is no /env/bin/python")
    assert "same environment in the same folder" in fix


@pytest.mark.parametrize(
    ("versions", "level", "text"),
    [
        ({"hvd_dbs": "0.1.0"}, "problem", "hvd_dbs is 0.1.0, and 0.2.0 here"),
        ({"Horovod": "0.27.0"}, "problem", "Horovod is 0.27.0, and 0.28.1 here"),
        ({"TensorFlow": "2.20.0"}, "warning", "TensorFlow is 2.20.0, and 2.21.0 here"),
        ({"Python": "3.11.2"}, "warning", "Python is 3.11.2, and 3.11.7 here"),
        ({"TensorFlow": ""}, "problem", "TensorFlow is not installed; here it is 2.21.0"),
    ],
)
def test_other_versions_are_named_with_their_hosts(versions, level, text):
    others = [
        a_host(number, seen=seen(number, versions={**VERSIONS, **versions})) for number in (2, 3)
    ]
    assert only(HOSTS[0], *others)[:2] == (level, f"node2, node3: {text}")


def test_an_orted_that_ssh_does_not_find():
    level, text, fix = only(HOSTS[0], a_host(2, orted={"prefix": ORTED}))
    assert level == "warning" and "node2: orted is not on the PATH" in text
    assert (
        fix == 'mpirun --prefix /env, horovodrun --mpi-args="--prefix /env", or horovodrun --gloo'
    )
    knows = replace(HERE, finds_orted=True)
    assert not_fine(HOSTS[0], a_host(2, orted={"prefix": ORTED}), here=knows) == []


def test_no_orted_at_all_is_a_problem_of_mpirun_alone():
    level, text, fix = only(HOSTS[0], a_host(2, orted={}))
    assert level == "problem" and "neither on PATH nor in /env/bin" in text
    assert "horovodrun --gloo" in fix
    assert not_fine(HOSTS[0], a_host(2, orted={}), here=replace(HERE, prefix="", mpirun="")) == []
    other = replace(HERE, mpirun="HYDRA build details:")
    assert not_fine(HOSTS[0], a_host(2, orted={}), here=other) == []


def test_another_open_mpi_is_a_problem():
    old = a_host(2, orted={"PATH": "orted of mpirun (Open MPI) 4.1.4", "prefix": ORTED})
    level, text, _ = only(HOSTS[0], old)
    assert level == "problem" and "4.1.4 does not fit mpirun (Open MPI) 4.1.8" in text
    assert not_fine(HOSTS[0], a_host(2, orted={"PATH": "orted of"})) == []


def test_ssh_that_never_notices_a_cut_network():
    level, text, fix = only(HOSTS[0], a_host(2, alive_seconds=0), a_host(3, alive_seconds=0))
    assert level == "warning" and text.startswith("node2, node3: ssh does not notice when")
    assert "ServerAliveInterval 5" in fix
    assert not_fine(a_host(1, is_local=True, alive_seconds=0)) == []


def test_hosts_that_do_not_find_each_other():
    addresses = {"node1": ["10.0.0.1"], "node3": []}
    deaf = a_host(2, seen=seen(2, addresses=addresses))
    assert only(HOSTS[0], deaf, HOSTS[2])[:2] == (
        "warning",
        "node3 is unknown by this name on node2",
    )
    looped = a_host(2, seen=seen(2, addresses={"node1": ["127.0.1.1", "::1%lo"]}))
    assert only(HOSTS[0], looped)[:2] == (
        "problem",
        "node1 is a name of the host itself (127.0.0.1) on node2",
    )


def with_bridge(number, name="eth0", address="10.0.0"):
    own = {name: [f"{address}.{number}", "255.255.255.0"]}
    docker = {"docker0": ["172.17.0.1", "255.255.0.0"]}
    return a_host(number, seen=seen(number, interfaces={**docker, **own}))


def test_an_address_that_two_hosts_have_comes_with_an_interface_that_works():
    level, text, fix = only(*map(with_bridge, (1, 2)))
    assert (level, text) == (
        "warning",
        "docker0 has the address 172.17.0.1 on node1, node2: MPI may hang on it",
    )
    assert fix == (
        "mpirun --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0, "
        "horovodrun --network-interfaces eth0"
    )


def test_where_interfaces_have_other_names_the_network_is_given():
    fix = only(with_bridge(1, "eth0"), with_bridge(2, "ens5"))[2]
    assert "btl_tcp_if_include 10.0.0.0/24 --mca oob_tcp_if_include 10.0.0.0/24" in fix
    fix = only(with_bridge(1, "eth0"), with_bridge(2, "ens5", "10.9.9"))[2]
    assert "NAME: a network in which all hosts reach each other" in fix
