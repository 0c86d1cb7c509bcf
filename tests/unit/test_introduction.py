"""What ranks know of each other before anything else."""

from __future__ import annotations

import pytest

from hvd_dbs.comm import introduction
from hvd_dbs.comm.collective import AloneCollective
from hvd_dbs.comm.introduction import Introduction, introduce, own_addresses
from hvd_dbs.comm.tcp_info import plain_address

HERE = {"hvd_dbs": "0.2.0", "Interface": "2"}


def job_of(monkeypatch, *texts):
    """A job whose ranks introduce themselves by these texts."""
    monkeypatch.setattr(introduction, "allgather_text", lambda _, own: [own, *texts])
    return AloneCollective()


def a_rank(host="node2", **versions):
    return Introduction(host, ("10.0.0.2",), {**HERE, **versions}).text


def test_all_ranks_are_known_by_host_and_address(monkeypatch):
    job = job_of(monkeypatch, a_rank())
    first, second = introduce(job, HERE)
    assert first == Introduction.here(HERE)
    assert second == Introduction("node2", ("10.0.0.2",), HERE)


def test_another_version_is_refused_with_the_names_of_the_hosts(monkeypatch):
    monkeypatch.setattr(introduction.socket, "gethostname", lambda: "node1")
    job = job_of(monkeypatch, a_rank("node1"), *[a_rank(hvd_dbs="0.1.0")] * 2)
    with pytest.raises(RuntimeError) as caught:
        introduce(job, HERE)
    assert str(caught.value).splitlines()[0] == (
        "hvd_dbs is not the same on all ranks: 0.2.0 on node1 (ranks 0, 1); 0.1.0 on node2 "
        "(ranks 2, 3)."
    )
    assert "Install the same hvd_dbs on all hosts" in str(caught.value)


def test_another_interface_of_the_native_library_is_refused(monkeypatch):
    job = job_of(monkeypatch, a_rank(Interface="3"))
    with pytest.raises(RuntimeError, match=r"^Interface is not the same on all ranks: 2 on "):
        introduce(job, HERE)


@pytest.mark.parametrize(
    "text", ["64\x1fdbs", "", "{}", '{"mark": "other"}', "[1]", '{"mark": "hvd_dbs introduction"}']
)
def test_a_version_from_before_there_were_introductions_is_refused(monkeypatch, text):
    with pytest.raises(RuntimeError, match=r"hvd_dbs is not the same .* unknown on \? \(rank 1\)"):
        introduce(job_of(monkeypatch, text), HERE)


def test_a_newer_version_that_says_more_is_understood(monkeypatch):
    text = a_rank().replace('"mark"', '"more": [1], "mark"')
    assert len(introduce(job_of(monkeypatch, text), HERE)) == 2


def test_own_addresses_are_those_that_others_reach():
    assert all(plain_address(address) == address for address in own_addresses())
    assert "127.0.0.1" not in own_addresses()
