"""What ranks make of the times of their buckets, and what a step consists of."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from hvd_dbs.balancing import Measurement
from hvd_dbs.job.communication import ROW_SIZE, Communication, row_of
from hvd_dbs.job.step_parts import StepParts

NAN = math.nan


def rows(*ranks):
    """Of each rank its steps, each T_o and T_u as the rank has seen them."""
    return np.array([row_of(*np.array(steps, dtype=float).T) for steps in ranks])


def test_a_step_takes_what_the_rank_saw_that_waited_least():
    seen = rows([(2, 9), (5, 1), (3, 1)], [(7, 2), (2, 7), (9, 3)])
    found = Communication().after(seen)
    assert found.steps.tolist() == [[2, 2], [2, 1], [3, 1]]
    assert (found.overlap_seconds, found.last_bucket_seconds) == (2, 1)


@pytest.mark.parametrize("slow_rank", [0, 1, 2])
def test_whatever_rank_is_slow_it_is_no_communication(slow_rank):
    """By 5 s, in which the others wait with their first bucket on its way."""
    seen = [[(0.1 + 5 * (rank != slow_rank), 0.02)] * 4 for rank in range(3)]
    found = Communication().after(rows(*seen))
    assert found.overlap_seconds == pytest.approx(0.1)
    assert found.last_bucket_seconds == pytest.approx(0.02)


def test_ranks_that_are_late_by_turns_are_no_communication():
    rng = np.random.default_rng(0)
    lateness = rng.exponential(1.0, (8, 4))
    waits = lateness.max(axis=1, keepdims=True) - lateness
    seen = rows(*[[(0.1 + wait, 0.0) for wait in waits[:, rank]] for rank in range(4)])
    assert Communication().after(seen).overlap_seconds == pytest.approx(0.1)


def test_a_step_counts_where_all_ranks_have_seen_it():
    found = Communication().after(rows([(1, 1), (NAN, 1), (3, 1)], [(1, 1), (2, 1), (4, NAN)]))
    assert found.steps.tolist() == [[1, 1]]
    none = Communication().after(rows([(NAN, NAN)], [(1, 1)]))
    assert math.isnan(none.overlap_seconds) and math.isnan(none.last_bucket_seconds)


def test_the_last_steps_of_the_last_rounds_count():
    row = row_of(np.arange(20.0), np.ones(20))
    assert len(row) == ROW_SIZE and row[::2].tolist() == list(range(12, 20))
    assert np.isnan(row_of(np.zeros(0), np.zeros(0))).all()
    found = Communication(negotiation_seconds=0.25)
    for seconds in (1, 1, 1, 2, 2, 3):
        found = found.after(rows([(seconds, seconds)] * 4))
    assert found.overlap_seconds == 2 and len(found.steps) == 16
    assert found.negotiation_seconds == 0.25
    assert found.after(rows([(NAN, NAN)])).overlap_seconds == 2


def test_a_measurement_knows_of_it():
    found = Communication().after(rows([(3, 1)]))
    measured = found.added_to(Measurement.of([4, 4], [5, 5], first_bucket_seconds=[1, 4]))
    assert measured.overlap_seconds.tolist() == [3, 3]
    assert measured.last_bucket_seconds.tolist() == [1, 1]


class Alone:
    """A job of one rank."""

    size = 1

    def allgather(self, row):
        return row[np.newaxis]


def test_the_first_round_knows_its_own_steps():
    found = Communication.first(Alone(), rows([(3, 1)])[0])
    assert (found.overlap_seconds, found.negotiation_seconds) == (3, 0)


def a_round(busy, step, first=(), overlap=NAN, last=NAN, negotiation=NAN):
    return SimpleNamespace(
        busy_seconds=busy,
        step_seconds=step,
        first_bucket_seconds=first,
        overlap_seconds=overlap,
        last_bucket_seconds=last,
        negotiation_seconds=negotiation,
    )


@pytest.mark.parametrize(
    ("seen", "parts"),
    [
        # Longest 6 of 10; the others wait 0, 3; all is rest.
        (a_round((6, 3), 10), (0.15, 0.4, NAN, NAN, NAN)),
        # T_o ends at 1 + 4 and hides; T_u does not, of which one message is 0.5.
        (a_round((6, 3), 10, (1, 1), 4, 2, 0.5), (0.15, 0.4, 0.2, 0.05, 0.2)),
        # T_o ends at 2 + 5, a second after the longest busy time.
        (a_round((6, 3), 10, (1, 2), 5, 2, 9), (0.15, 0.4, 0.3, 0.3, 0.1)),
        # More than there is: no part is below 0, and none is more than the whole.
        (a_round((6, 6), 10, (5, 5), 5, 2), (0.0, 0.4, 0.4, NAN, 0.0)),
        (a_round((6, 6), 10, (5, 5), 5, 12, 9), (0.0, 0.4, 0.4, 0.4, 0.0)),
        (a_round((NAN, 6), 10, (NAN, NAN), 5, 2), (0.0, 0.4, 0.2, NAN, 0.2)),
        (a_round((NAN, NAN), 10), (NAN,) * 5),
        (a_round((1, 1), NAN), (NAN,) * 5),
    ],
)
def test_parts_of_a_step(seen, parts):
    assert StepParts.of(seen).as_row == pytest.approx(parts, nan_ok=True)
