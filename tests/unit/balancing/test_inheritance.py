"""Who begins with whose memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_dbs.balancing import Bounds, Plan
from hvd_dbs.balancing.inheritance import RankMemory, inherit, slots_by_rank

hosts = st.lists(st.sampled_from("abcd"), min_size=1, max_size=8)


@given(hosts, hosts, st.data())
def test_old_slots_keep_their_memory_and_new_ones_have_somebodys(before, now, data):
    saved = {
        slot: RankMemory(data.draw(st.integers(1, 50)), data.draw(st.none() | st.just(str(slot))))
        for slot in slots_by_rank(before)
    }
    slots = slots_by_rank(now)
    memories = inherit(saved, slots)
    assert len(memories) == len(slots)
    for slot, memory in zip(slots, memories, strict=True):
        if slot in saved:
            assert memory is saved[slot]
            continue
        others = [one for (host, _), one in saved.items() if host == slot[0]] or [*saved.values()]
        assert memory in others
        if any(one.model is not None for one in others):
            assert memory.model is not None
    shares = [memory.share for memory in memories]
    plan = Plan.proportional(40, shares, Bounds.of(len(slots), minimum=1))
    assert plan.global_batch_size == 40


def test_the_same_ranks_have_the_same_plan():
    saved = {slot: RankMemory(n) for slot, n in zip(slots_by_rank("aba"), (7, 2, 5), strict=True)}
    shares = [memory.share for memory in inherit(saved, slots_by_rank("aab"))]
    assert shares == [7, 5, 2]  # Slots count, not ranks.
    assert Plan.proportional(14, shares, Bounds.of(3, minimum=1)).batch_sizes == (7, 5, 2)


def test_names_of_hosts_that_are_made_up_do_not_hide_kinds_of_device():
    """The hosts of a job on Ray or Kubernetes may have other names in the next run."""
    saved = {
        ("x1", 0): RankMemory(6, "a", "A100"),
        ("x2", 0): RankMemory(1, "t", "T4"),
        ("x2", 1): RankMemory(2, "u", "T4"),
        ("x3", 0): RankMemory(3, "c"),
    }

    def shares(*ranks):
        slots, devices = zip(*ranks, strict=True)
        return [memory.share for memory in inherit(saved, slots, devices)]

    assert shares((("y1", 0), "T4"), (("y2", 0), "A100")) == [1, 6]
    assert shares((("x2", 1), "T4"), (("x2", 2), "T4"), (("x3", 0), "T4")) == [2, 1, 3]
    # A name that another machine has now is worth less than its device.
    assert shares((("x1", 0), "T4"), (("x2", 0), "A100")) == [1, 6]
    # A kind that nobody had: the slot, the host, all.
    assert shares((("x1", 0), "new"), (("x2", 7), "new"), (("y", 0), "new")) == [6, 1, 2]
    # Where nothing is known of kinds, as before.
    assert [one.share for one in inherit(saved, [("x2", 1), ("x1", 1)])] == [2, 6]


def test_a_new_slot_is_as_the_rank_in_the_middle():
    saved = {("a", 0): RankMemory(9, "x"), ("a", 1): RankMemory(1), ("b", 0): RankMemory(4, "y")}
    assert inherit(saved, [("a", 7)])[0].model == "x"  # The one of its host that is known.
    assert inherit(saved, [("c", 0)])[0].model == "y"
    with pytest.raises(ValueError, match="no rank's memory"):
        inherit({}, [("a", 0)])
    with pytest.raises(ValueError, match="share=-1"):
        RankMemory(-1)
