"""Random plans at random steps, read with random prefetch depths, keep every invariant."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.job.epoch_steps import EpochSteps
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.sampling import EpochOrder, SampleCosts


@st.composite
def jobs(draw):
    """(costs, plans by decision, steps between decisions, prefetch depth by rank, steps ahead).

    Costs are those of each sample, or the number of samples.
    """
    size = draw(st.integers(1, 3))
    global_batch_size = draw(st.integers(max(size, 2), 24))

    def plan():
        borders = draw(
            st.lists(
                st.integers(1, global_batch_size - 1),
                min_size=size - 1,
                max_size=size - 1,
                unique=True,
            )
        )
        return tuple(np.diff([0, *sorted(borders), global_batch_size]).tolist())

    plans = [plan() for _ in range(draw(st.integers(1, 6)))]
    num_samples = draw(st.integers(1, 12 * global_batch_size))
    costs = draw(st.none() | st.integers(0, 99))
    if costs is not None:
        given = np.random.default_rng(costs).lognormal(size=num_samples)
        costs = SampleCosts.of(given, num_samples)
    gaps = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    depths = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    return costs or num_samples, plans, gaps, depths, draw(st.integers(1, 4))


class Rank:
    """What one rank reads and counts; reads ahead as far as it may."""

    def __init__(self, rank, costs, plan, depth, ahead):
        costs, num_samples = (None, costs) if isinstance(costs, int) else (costs, len(costs.units))
        self.stage = IndexStage(num_samples, 7, rank, plan, costs=costs)
        self.steps = EpochSteps(StepClock())
        self.depth, self.num_ahead = depth, ahead

    def begin_epoch(self, epoch, plan, settled):
        if epoch == 0:
            self.stage.begin_training(plan)
        self.stage.open_epoch(epoch, plan, settled)
        self.settled = settled
        self.steps.begin_epoch(self.stage, epoch, self.stage.num_steps, plan)
        self.steps.announce(0, self.num_ahead)
        self.iterator, self.ahead = self.stage(), []

    def step(self, step):
        """The indices that count in this step, as data and weights say."""
        reach = min(step + 1 + self.depth, self.settled, self.stage.num_steps)
        while step + len(self.ahead) < reach:
            self.ahead.append(next(self.iterator))
        indices = self.ahead.pop(0)
        weight, work, _ = (value.numpy() for value in self.steps.samples.work())
        assert weight in (0, len(indices))
        mine = self.stage.rank_step(step)
        assert (weight, work) == (mine.num_samples, mine.work)
        return indices[:weight].tolist()

    def decide(self, plan):
        first = self.stage.publish(plan)
        if first < self.stage.num_steps:
            self.steps.change(first, plan)
        return first

    def end_step(self, steps_done):
        self.stage.settle(steps_done + self.num_ahead)
        self.steps.announce(steps_done, self.num_ahead)
        self.settled = steps_done + self.num_ahead


@settings(max_examples=60)
@given(jobs())
def test_every_sample_once_in_the_same_global_batches(job):
    costs, plans, gaps, depths, ahead = job
    global_batch_size = sum(plans[0])
    ranks = [Rank(r, costs, plans[0], depth, ahead) for r, depth in enumerate(depths)]
    num_steps, num_samples = ranks[0].stage.num_steps, ranks[0].stage.num_samples
    plan, decisions = plans[0], 0
    for epoch in range(2):
        order = EpochOrder(num_samples, 7, epoch).indices(0, num_samples)
        due = gaps[0]
        for rank in ranks:
            rank.begin_epoch(epoch, plan, ahead)
        for step in range(num_steps):
            batch = [index for rank in ranks for index in rank.step(step)]
            start = step * global_batch_size
            assert batch == order[start : start + global_batch_size].tolist()
            due -= 1
            if due == 0:
                decisions += 1
                plan, due = plans[decisions % len(plans)], gaps[decisions % len(gaps)]
                firsts = {rank.decide(plan) for rank in ranks}
                assert len(firsts) == 1  # From the same step on, on all ranks.
                assert min(firsts) >= min(step + 1, num_steps)
            for rank in ranks:
                rank.end_step(step + 1)
