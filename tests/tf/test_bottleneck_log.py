"""What holds a job back is logged once, and when it changes."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

from hvd_dbs.comm.links import Link
from hvd_dbs.job.bottleneck_log import BottleneckLog
from hvd_dbs.job.decision import Received

HOSTS = ("node1", "node2", "node3")
FAST = [Link("node1", "node2", 250e6, 0.0004), Link("node2", "node3", 250e6, 0.0004)]
SLOW = [Link("node3", "node1", 12e6, 0.02), *FAST]


def a_round(busy_seconds, step_seconds):
    known = np.array(busy_seconds)
    return Received(np.full(known.size, 8.0), known, np.zeros(known.size), step_seconds)


NETWORK = a_round([0.1, 0.09, 0.1], 0.3)
RANKS = a_round([0.1, 0.1, 0.28], 0.3)
NONE = a_round([0.28, 0.28, 0.28], 0.3)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "hvd_dbs")
    return lambda: [record.getMessage().partition(": ")[2] for record in caplog.records]


def note(log, received, links=SLOW, times=3):
    for _ in range(times):
        log.note(received, HOSTS, links)


def test_it_is_logged_once_and_when_it_changes(lines):
    log = BottleneckLog()
    network = (
        "the network holds the job back, balancing cannot help. Slowest link: node3 - node1, "
        "96 Mbit/s, 20 ms; others 2 Gbit/s."
    )
    note(log, NETWORK, times=10)
    assert lines() == [network]
    note(log, NETWORK, links=FAST, times=5)
    assert len(lines()) == 2 and "No link is clearly slower" in lines()[1]
    note(log, RANKS, times=6)
    assert lines()[2:] == ["slow ranks hold the job back."]
    note(log, NONE, times=6)
    assert lines()[3:] == ["neither slow ranks nor communication hold the job back."]


def test_where_nothing_holds_it_back_nothing_is_logged(lines):
    note(BottleneckLog(), NONE, times=9)
    assert lines() == []


def test_a_round_that_is_unlike_the_others_is_not_logged(lines):
    log = BottleneckLog()
    for received in (NONE, NONE, NETWORK, NONE, RANKS, NONE, NONE) * 2:
        note(log, received, times=1)
    assert lines() == []


@pytest.mark.parametrize("received", [a_round([math.nan] * 3, 0.3), a_round([0.1] * 3, math.nan)])
def test_what_nobody_has_measured_is_not_logged(lines, received):
    note(BottleneckLog(), received, times=5)
    assert lines() == []


def test_other_ranks_are_another_job(lines):
    log = BottleneckLog()
    note(log, NETWORK)
    log.restart()
    note(log, NETWORK, times=2)
    assert len(lines()) == 1
    note(log, NETWORK, times=1)
    assert len(lines()) == 2
