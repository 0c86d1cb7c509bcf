"""Bounds of local batch sizes in all the ways in which they may be given."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing.place import Place
from hvd_dbs.job.arguments import BalancerArguments, BatchSizeLimits, MicroBatches

PLACES = [Place("a"), Place("b")]
A100 = Place("node7.cluster.local", "NVIDIA A100-SXM4-80GB", "0a1b2c")
T4 = Place("node8.cluster.local", "Tesla T4", "3d4e5f")


@pytest.mark.parametrize(
    ("given", "maximum"),
    [
        (8, (8, 8)),
        (np.int32(8), (8, 8)),
        (np.array(8), (8, 8)),
        ([8, 12], (8, 12)),
        (np.array([8, 12]), (8, 12)),
        ({"b": 12, "a": 8, "c": 1}, (8, 12)),
        (None, (None, None)),
    ],
)
def test_what_bounds_are_taken(given, maximum):
    assert BatchSizeLimits(1, given, 1).bounds(PLACES).maximum == maximum


def identity(max_batch_size):
    limits = BatchSizeLimits(1, max_batch_size, 1)
    return BalancerArguments(512, "adaptive", None, limits, None, None).identity


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"*A100*": 256, "Tesla T4": 64, 7: 1}, {7: 1, "Tesla T4": 64, "*A100*": 256}),
        (np.array([8, 12]), np.array([8, 12])),
        (np.full(3000, 8), np.full(3000, 8, dtype=np.int32)),
    ],
)
def test_equal_bounds_are_the_same_argument(first, second):
    assert identity(first) == identity(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"*A100*": 256, "Tesla T4": 64}, {"*A100*": 64, "Tesla T4": 256}),
        ({"a": 8}, {"a": 8, "b": 8}),
        (np.array([8, 12]), np.array([12, 8])),
        (np.full(3000, 8), np.where(np.arange(3000) == 1500, 9, 8)),  # Far from both ends.
        (8, [8, 8]),
    ],
)
def test_other_bounds_are_another_argument(first, second):
    assert identity(first) != identity(second)


@pytest.mark.parametrize(
    ("given", "maximum"),
    [
        ({"NVIDIA A100*": 256, "Tesla T4": 64}, (256, 64)),
        ({"NVIDIA A100*": 256, "node8.cluster.local": 64}, (256, 64)),
        ({"*A100*": 256, "node8": 64}, (256, 64)),
        ({"0a1b2c": 256, "3d4e5f": 64}, (256, 64)),  # The launcher's names.
        ({"node[78].*": 64}, (64, 64)),
        ({"node*": 64, "node7": 8}, (8, 64)),  # A host's name counts before a pattern.
        ({"node7.cluster.local": 4, "node7": 8, "*": 64}, (4, 64)),
        ({"*": 64, "*A100*": 256}, (256, 64)),  # All others.
        ({"NVIDIA*": 256, "*A100*": 256, "*T4": 64}, (256, 64)),
        ({"node7": 8, "node8": 64, "node9": 128}, (8, 64)),  # A host of another job.
    ],
)
def test_bounds_by_kind_of_device_and_host(given, maximum):
    assert BatchSizeLimits(1, given, 1).bounds([A100, T4]).maximum == maximum
    lows = BatchSizeLimits(given, None, 1).bounds([T4, A100, T4]).minimum
    assert lows == (maximum[1], maximum[0], maximum[1])


def test_a_name_with_brackets_is_taken_as_it_is():
    place = Place("a", "GPU [rev 2]")
    assert BatchSizeLimits(1, {"GPU [rev 2]": 8}, 1).bounds([place]).maximum == (8,)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"NVIDIA*": 8, "*A100*": 9, "*": 1},
            r"several entries for host node7\S* \(NVIDIA A100\S*",
        ),
        ({"NVIDIA A100*": 8}, r"no entry for host node8\.cluster\.local \(Tesla T4\); it has NVI"),
        ({"nvidia a100*": 8, "*": 1}, r"\['nvidia a100\*'\] matches no rank; the ranks are on"),
    ],
)
def test_patterns_that_cannot_be_meant_are_named(given, text):
    with pytest.raises(ValueError, match=text):
        BatchSizeLimits(1, given, 1).bounds([A100, T4])


def test_hosts_of_elastic_jobs_may_come_later():
    limits = BatchSizeLimits(1, {"NVIDIA A100*": 256, "Tesla*": 64}, 1)
    assert limits.bounds([T4], is_elastic=True).maximum == (64,)
    with pytest.raises(ValueError, match="matches no rank"):
        limits.bounds([T4])
    with pytest.raises(ValueError, match="no entry for host c"):
        limits.bounds([Place("c")], is_elastic=True)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            [8, None],
            TypeError,
            r"max_batch_size\[1\]=None is a NoneType; it must be a whole number",
        ),
        (np.array([8.0, 12.0]), TypeError, r"max_batch_size\[0\]=8.0 is a float"),
        (np.array([[8, 12]]), TypeError, r"max_batch_size\[0\]=\[8, 12\] is a list"),
        (np.array([8, 12, 3]), ValueError, "3 entries for 2 ranks"),
        ({"a": 8, "b": "12"}, TypeError, r"max_batch_size\['b'\]='12' is a str"),
        ({}, ValueError, "no entry for host a, b; it has none"),
        ({"a": 8, 1: 9}, ValueError, "no entry for host b; it has a, 1"),
    ],
)
def test_bounds_that_are_none_are_named(given, error, text):
    with pytest.raises(error, match=text):
        BatchSizeLimits(1, given, 1).bounds(PLACES)


@pytest.mark.parametrize(
    ("given", "multiples"),
    [
        (MicroBatches(8), (24, None)),
        (MicroBatches([8, 4]), (12, (24, 12))),
        (MicroBatches({"NVIDIA A100*": 8, "*": 4}), (12, (24, 12))),
        (MicroBatches(8, allow_partial=True), (3, None)),
        (MicroBatches(), (3, None)),
    ],
)
def test_batch_sizes_are_multiples_of_whole_micro_batches(given, multiples):
    bounds = BatchSizeLimits(1, None, 3, given).bounds([A100, T4])
    assert (bounds.multiple_of, bounds.multiples) == multiples


def test_micro_batch_sizes_by_rank():
    assert MicroBatches({"NVIDIA A100*": 8, "*": 4}).sizes([T4, A100]) == [4, 8]
    assert MicroBatches(8, allow_partial=True).sizes(PLACES) == [8, 8]
    assert MicroBatches().sizes(PLACES) == [None, None]
    with pytest.raises(TypeError, match=r"micro_batch_size=2\.0 is a float"):
        MicroBatches(2.0).sizes(PLACES)
