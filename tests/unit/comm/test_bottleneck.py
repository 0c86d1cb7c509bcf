"""The verdict: what holds a job back."""

from __future__ import annotations

import math

import pytest

from hvd_dbs.comm.links import Link
from hvd_dbs.job.bottleneck import Bottleneck
from hvd_dbs.job.step_parts import StepParts

SLOW = Link("node1", "node3", 12e6, 0.02)
LINKS = [
    Link("node1", "node2", 250e6, 0.0004),
    SLOW,
    Link("node2", "node1", 260e6, 0.0004),
    Link("node3", "node2", 12.5e6, 0.02),
]


def parts(rest, waiting, communication=math.nan, negotiation=math.nan):
    return StepParts(waiting, rest, communication, negotiation, rest - communication)


def test_a_slow_link_is_named():
    found = Bottleneck.of(parts(0.57, 0.03), 3, LINKS)
    assert found is not None and found.names_a_link
    assert found.text == (
        "communication takes 57 % of a step and waiting for slow ranks 3 %: the network holds the "
        "job back, balancing cannot help. Slowest link: node1 - node3, 96 Mbit/s, 20 ms; others "
        "2 Gbit/s; all links of node3 are slow."
    )


def test_a_single_slow_link_is_named_alone():
    found = Bottleneck.of(parts(0.57, 0.03), 3, [SLOW, *LINKS[:1], LINKS[2]])
    assert found is not None and found.slow_host == ""
    assert found.text.endswith("Slowest link: node1 - node3, 96 Mbit/s, 20 ms; others 2 Gbit/s.")


@pytest.mark.parametrize(
    ("links", "end"),
    [
        ([], "balancing cannot help."),
        ([SLOW], " No link is clearly slower than node1 - node3, 96 Mbit/s, 20 ms."),
        ([LINKS[0], LINKS[2]], " No link is clearly slower than node1 - node2, 2 Gbit/s, 0.4 ms."),
        ([Link("a", "b", 3e6, math.nan)], "slower than a - b, 24 Mbit/s."),
    ],
)
def test_no_link_is_called_slow_that_is_like_the_others(links, end):
    found = Bottleneck.of(parts(0.57, 0.03), 3, links)
    assert found is not None and not found.names_a_link
    assert end in found.text


@pytest.mark.parametrize(
    ("communication", "waiting", "num_hosts", "conclusion"),
    [
        (0.57, 0.03, 1, "the exchange of gradients holds the job back, balancing cannot help."),
        (0.3, 0.2, 2, "slow ranks hold the job back."),
        (0.04, 0.32, 2, "slow ranks hold the job back."),
        (0.08, 0.02, 2, "neither slow ranks nor communication hold the job back."),
        (0.0, 0.0, 2, "neither slow ranks nor communication hold the job back."),
    ],
)
def test_what_takes_most_holds_the_job_back(communication, waiting, num_hosts, conclusion):
    found = Bottleneck.of(parts(communication, waiting), num_hosts, LINKS[:0])
    assert found is not None and found.conclusion == conclusion


def test_what_nobody_has_measured_holds_nothing_back():
    assert Bottleneck.of(parts(math.nan, 0.1), 2) is None
    assert Bottleneck.of(parts(0.1, math.nan), 2) is None


@pytest.mark.parametrize(
    ("rest", "waiting", "communication", "conclusion"),
    [
        (0.57, 0.03, 0.5, "the network holds the job back, balancing cannot help."),
        # What is left is waiting too, for another rank in each step.
        (0.57, 0.03, 0.2, "ranks that are slow by turns hold the job back"),
        (0.57, 0.25, 0.2, "slow ranks hold the job back."),
        (0.3, 0.03, 0.15, "neither slow ranks nor communication hold the job back."),
    ],
)
def test_measured_communication_is_told_from_ranks_that_are_slow_by_turns(
    rest, waiting, communication, conclusion
):
    found = Bottleneck.of(parts(rest, waiting, communication), 2)
    assert found is not None and found.conclusion.startswith(conclusion)


def test_the_parts_are_in_the_text():
    found = Bottleneck.of(parts(0.57, 0.03, 0.5, 0.04), 2)
    assert found is not None
    assert found.text == (
        "communication takes 50 % (negotiation 4 %) of a step and waiting for slow ranks 3 %, for "
        "ranks that are slow by turns 7 %: the network holds the job back, balancing cannot help."
    )


@pytest.mark.parametrize(
    ("negotiation", "is_named"), [(0.1, False), (0.3, True), (math.nan, False)]
)
def test_negotiation_is_named_where_it_is_most_of_it(negotiation, is_named):
    found = Bottleneck.of(parts(0.57, 0.03, 0.5, negotiation), 2)
    assert found is not None and ("HOROVOD_CYCLE_TIME" in found.text) == is_named
