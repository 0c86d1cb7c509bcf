"""Bounds of local batch sizes in all the ways in which they may be given."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancer_arguments import BatchSizeLimits

HOSTS = ["a", "b"]


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
    assert BatchSizeLimits(1, given, 1).bounds(HOSTS).maximum == maximum


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
        BatchSizeLimits(1, given, 1).bounds(HOSTS)
