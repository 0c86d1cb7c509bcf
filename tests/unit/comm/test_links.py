"""Which link is slow, from what connections have carried."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hvd_dbs.comm.links import Link, LinkMeter, links_of
from hvd_dbs.comm.tcp_info import Connection, TcpInfo

HOSTS = ("node1", "node1", "node2", "node3")
ADDRESSES = (("10.0.0.1", "172.17.0.1"),) * 2 + (
    ("10.0.0.2", "172.17.0.1"),
    ("10.0.0.3", "172.17.0.1"),
)
MEGABYTE = 10**6


class Network:
    """Connections whose totals a test lets grow."""

    def __init__(self):
        self.seconds = 0.0
        self.open = {}

    def send(self, peer, num_bytes, seconds, rate=math.nan, descriptor=5):
        key = (descriptor, peer, 4000)
        before = self.open.get(key, TcpInfo(0, 0.0, 0.0, math.nan))
        total = before.bytes_acked + num_bytes, before.sending_seconds + seconds
        self.open[key] = TcpInfo(*total, 0.02, rate)

    def connections(self):
        return [Connection(key, key[1], info) for key, info in self.open.items()]

    def meter(self):
        meter = LinkMeter(self.connections, lambda: self.seconds)
        meter.change_hosts(HOSTS, ADDRESSES, 0)
        return meter

    def row(self, meter):
        self.seconds += 10.0
        return meter.row().reshape(2, 3)


@pytest.fixture
def network():
    return Network()


def test_the_slowest_and_the_fastest_link_are_known(network):
    meter = network.meter()
    network.send("10.0.0.2", 250 * MEGABYTE, 1.0)
    network.send("10.0.0.3", 12 * MEGABYTE, 1.0)
    slowest, fastest = network.row(meter)
    assert slowest == pytest.approx([2, 12 * MEGABYTE, 0.02], rel=0.01)
    assert fastest == pytest.approx([1, 250 * MEGABYTE, 0.02], rel=0.01)


def test_a_connection_that_carries_little_says_nothing_of_its_link(network):
    meter = network.meter()
    network.send("10.0.0.2", 10_000, 1.0, rate=10_000.0)
    assert np.isnan(network.row(meter)).all()


def test_what_was_sent_long_ago_says_nothing(network):
    meter = network.meter()
    network.send("10.0.0.2", 50 * MEGABYTE, 1.0)
    assert np.isfinite(network.row(meter)).all()
    for _ in range(8):
        network.send("10.0.0.2", 100, 0.02)
        row = network.row(meter)
    assert np.isnan(row).all()


def test_short_messages_do_not_make_a_link_slow(network):
    """While one is under way nothing else is sent; the kernel's own rate knows better then."""
    meter = network.meter()
    network.send("10.0.0.2", 10 * MEGABYTE, 1.0, rate=200.0 * MEGABYTE)
    assert network.row(meter)[0, 1] == pytest.approx(200 * MEGABYTE)


def test_a_single_burst_does_not_make_it_fast(network):
    meter = network.meter()
    for rate in (12.0 * MEGABYTE, 300.0 * MEGABYTE, 11.0 * MEGABYTE):
        network.send("10.0.0.2", 12 * MEGABYTE, 1.0, rate=rate)
        row = network.row(meter)
    assert row[0, 1] == pytest.approx(12 * MEGABYTE, rel=0.01)


def test_of_several_connections_the_fastest_counts(network):
    meter = network.meter()
    network.send("10.0.0.2", 20 * MEGABYTE, 1.0)
    network.send("10.0.0.2", 40 * MEGABYTE, 1.0, descriptor=6)
    assert network.row(meter)[:, 1] == pytest.approx([40 * MEGABYTE] * 2, rel=0.01)


@pytest.mark.parametrize("peer", ["10.0.0.1", "172.17.0.1", "192.0.2.9"])
def test_own_shared_and_foreign_addresses_are_no_links(network, peer):
    """172.17.0.1 is a bridge that each host has, 192.0.2.9 no host of the job."""
    meter = network.meter()
    network.send(peer, 50 * MEGABYTE, 1.0)
    assert np.isnan(network.row(meter)).all()


def test_a_descriptor_that_is_used_again_is_another_connection(network):
    meter = network.meter()
    network.send("10.0.0.2", 50 * MEGABYTE, 1.0)
    network.row(meter)
    network.open.clear()
    network.send("10.0.0.2", 5 * MEGABYTE, 1.0)
    assert network.row(meter)[0, 1] == pytest.approx(5 * MEGABYTE, rel=0.01)


def test_reads_are_rare_however_often_ranks_decide(network):
    meter = network.meter()
    network.send("10.0.0.2", 50 * MEGABYTE, 1.0)
    first = meter.row()
    network.send("10.0.0.2", 50 * MEGABYTE, 10.0)
    np.testing.assert_array_equal(meter.row(), first)


def test_other_hosts_are_other_links(network):
    meter = network.meter()
    network.send("10.0.0.2", 50 * MEGABYTE, 1.0)
    network.row(meter)
    meter.change_hosts(("node1", "node3"), (("10.0.0.1",), ("10.0.0.3",)), 0)
    assert np.isnan(network.row(meter)).all()


def test_before_it_knows_hosts_it_does_not_even_read():
    def read():
        raise AssertionError

    assert np.isnan(LinkMeter(read).row()).all()


def test_rank_0_knows_each_pair_of_hosts():
    rows = np.full((4, 6), np.nan)
    rows[0] = [2, 12e6, 0.02, 1, 250e6, 0.001]
    rows[1] = [2, 11e6, 0.02, 2, 11e6, 0.02]  # The same pair.
    rows[2] = [0, 240e6, 0.001, 7, 1e6, 0.1]  # No such host.
    rows[3] = [0.5, 1e6, 0.1, 0, -1.0, 0.1]
    assert links_of(rows, HOSTS) == (
        Link("node1", "node3", 12e6, 0.02),
        Link("node2", "node1", 240e6, 0.001),
        Link("node1", "node2", 250e6, 0.001),
    )


def test_of_thousands_of_links_the_slowest_are_kept_and_some_of_the_others():
    hosts = [f"node{rank}" for rank in range(2000)]
    rows = np.full((2000, 6), np.nan)
    rows[:, 0] = np.roll(np.arange(2000), -1)
    rows[:, 1] = 1e9 + np.arange(2000)
    rows[1234, 1] = 1e6
    links = links_of(rows, hosts)
    assert (links[0].source, links[0].target) == ("node1234", "node1235")
    rates = [link.bytes_per_second for link in links]
    assert rates == sorted(rates) and len(links) == 64 and rates[-1] == 1e9 + 1999


def test_without_links_there_are_none():
    assert links_of(np.full((4, 6), np.nan), HOSTS) == ()
