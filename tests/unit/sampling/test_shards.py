"""An evaluation reads every sample once, in equally many steps on all ranks, none of them empty."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from hvd_dbs.sampling import num_evaluation_steps, num_steps, shard

plans = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(plans, st.integers(1, 600))
def test_every_sample_once_in_equally_many_steps(plan, num_samples):
    shards = [shard(rank, plan, num_samples) for rank in range(len(plan))]
    counted = [one for one in shards if one.weight]
    read = [i for one in counted for i in range(one.start, one.start + one.weight)]
    assert sorted(read) == list(range(num_samples))
    steps = num_evaluation_steps(num_samples, plan)
    assert steps <= num_steps(num_samples, sum(plan))
    for one in shards:
        assert len(one.counts) == steps
        assert min(one.counts) >= 1
        assert one.weight in (0, sum(one.counts))
        assert one.start + sum(one.counts) <= num_samples
    # Only where there are fewer samples than ranks somebody has none.
    assert (min(one.weight for one in shards) == 0) == (num_samples < len(plan))


@given(plans, st.integers(1, 600))
def test_no_step_is_larger_than_the_plan_allows(plan, num_samples):
    extra = sum(plan) < 2 * len(plan)
    for rank, most in enumerate(plan):
        assert max(shard(rank, plan, num_samples).counts) <= most + extra


@given(plans, st.integers(1, 600), st.integers(1, 5))
def test_a_larger_global_batch_may_keep_the_steps_of_a_smaller_one(plan, num_samples, factor):
    steps = num_evaluation_steps(num_samples, plan)
    larger = [factor * batch_size for batch_size in plan]
    shards = [shard(rank, larger, num_samples, steps) for rank in range(len(plan))]
    starts = [one.start for one in shards if one.weight]
    assert starts == [0, *accumulate(one.weight for one in shards if one.weight)][:-1]
    assert sum(one.weight for one in shards) == num_samples
    extra = sum(larger) < 2 * len(plan)
    for one, most in zip(shards, larger, strict=True):
        assert len(one.counts) == steps
        assert min(one.counts) >= 1 and max(one.counts) <= most + extra


@given(plans, st.integers(1, 20))
def test_whole_global_batches_are_cut_as_the_plan_says(plan, steps):
    for rank, count in enumerate(plan):
        assert shard(rank, plan, steps * sum(plan)).counts == (count,) * steps


def test_all_shards_together_are_proportional_to_the_plan():
    weights = [shard(rank, (20, 10, 2), 3207).weight for rank in range(3)]
    assert weights == [2004, 1002, 201]
