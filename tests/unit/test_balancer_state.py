"""The state of a balancer as plain data, and what is said of data that is none."""

from __future__ import annotations

import pytest

from hvd_dbs.job.balancer_state import BalancerState, SavedRank
from hvd_dbs.sampling import Cursor

STATE = BalancerState(
    strategy="dbs",
    ranks=(SavedRank(("a", 0), 48, {"seconds": [0.1]}, "T4"), SavedRank(("a", 1), 16)),
    cursor=Cursor(2, ((0, 64),)),
    data={"num_samples": 640},
    steps_to_next=None,
    solver={},
    parts={},
)


def with_rank_1(**changed):
    plain = STATE.plain()
    plain["ranks"][1] |= changed
    return plain


def test_a_state_is_what_its_plain_data_give():
    assert BalancerState.of(STATE.plain()) == STATE


@pytest.mark.parametrize(
    ("plain", "text"),
    [
        ([], "a list is no state; expected a mapping"),
        (STATE.plain() | {"format": 1}, "its format is 1; this version reads"),
        (STATE.plain() | {"ranks": []}, "its 0 ranks have no samples"),
        (STATE.plain() | {"ranks": [3]}, r"3 in 'ranks\[0\]' is not a mapping"),
        (STATE.plain() | {"solver": 5}, "its 'solver' is a int: 5"),
        (with_rank_1(slot=0), "two ranks on one slot"),
        (with_rank_1(slot=True), r"True in 'ranks\[1\]\.slot' is not a whole number of at least 0"),
        (with_rank_1(host=7), r"its 'ranks\[1\]\.host' is a int: 7"),
        (with_rank_1(batch_size=-1), r"-1 in 'ranks\[1\]\.batch_size' is not a whole number"),
        (STATE.plain() | {"used": [[0]]}, r"\[0\] in 'used' is not a pair of positions"),
    ],
)
def test_other_data_are_an_error_that_names_the_place(plain, text):
    with pytest.raises(ValueError, match=text):
        BalancerState.of(plain)


def test_a_missing_entry_is_named():
    plain = STATE.plain()
    del plain["ranks"][1]["host"]
    with pytest.raises(ValueError, match=r"it has no entry 'ranks\[1\]\.host'"):
        BalancerState.of(plain)
