"""The oracle against all plans there are."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_dbs.balancing import Bounds
from hvd_dbs.simulator.communication import StepRule
from hvd_dbs.simulator.oracle import Oracle
from hvd_dbs.simulator.rank_curves import RankCurves
from hvd_dbs.simulator.subset_sum import give_back
from hvd_dbs.simulator.timeline import Segment


def random_curves(random, kinds, most):
    """Affine (0), saturating (1) and table (2) curves."""
    size = len(kinds)
    tables = [k == 2 for k in kinds]
    row = np.cumsum(tables) - 1
    rows = sum(tables)
    table = random.choice([0.5, 1.0, 1.5, 2.0, 3.0], size=(rows, most + 1))
    table = table + 0.2 * random.random((rows, most + 1)) * random.integers(0, 2)
    return RankCurves(
        fixed=random.uniform(0, 1, size),
        per_sample=random.uniform(0.1, 0.5, size),
        saturation=np.where(np.asarray(kinds) == 1, random.integers(1, 5, size), 0).astype(float),
        scale=random.uniform(0.5, 2, size),
        row=np.where(tables, row, -1),
        table=table,
        first=np.stack([random.uniform(0.3, 0.8, size), random.uniform(0, 0.2, size)]),
    )


def by_hand(oracle, bounds, total, segment, rule):
    """The shortest step of all plans."""
    ranges = [
        [b for b in range(low, high + 1) if b % bounds.multiple_of == 0] if there else [0]
        for low, high, there in zip(bounds.minimum, bounds.maximum, segment.present, strict=True)
    ]
    times = [
        oracle.seconds(np.asarray(plan), segment, rule)
        for plan in itertools.product(*ranges)
        if sum(plan) == total
    ]
    return min(times, default=None)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    overlap=st.sampled_from([0.0, 0.5, 1.5]),
    multiple_of=st.sampled_from([1, 2, 3]),
    away=st.booleans(),
)
def test_nothing_is_better(seed, kinds, overlap, multiple_of, away):
    random = np.random.default_rng(seed)
    size, most = len(kinds), 9
    curves = random_curves(random, kinds, most)
    low, high = random.integers(1, 4, size), random.integers(6, most + 1, size)
    bounds = Bounds(tuple(low.tolist()), tuple(high.tolist()), multiple_of)
    present = np.ones(size, dtype=bool)
    present[0] = not (away and size > 1)
    segment = Segment(0, 1, random.uniform(0.5, 3, size), random.choice([0, 0.7], size), present)
    rule = StepRule(overlap, 0.1)
    unit_low, unit_high = bounds.in_units(10**6)
    units = random.integers(unit_low[present].sum(), unit_high[present].sum() + 1)
    total = int(units) * multiple_of
    oracle = Oracle(curves, bounds, total)
    expected = by_hand(oracle, bounds, total, segment, rule)
    best = oracle.best(segment, rule)
    assert best.seconds == pytest.approx(expected, rel=1e-11)
    assert best.batch_sizes.sum() == total
    assert np.all(best.batch_sizes[~present] == 0)
    again = oracle.best(segment, rule)  # Now it starts from its last answer.
    assert again.seconds == pytest.approx(expected, rel=1e-11)


def test_holes_that_no_surplus_fits_into():
    """Two ranks that are fast at 4 and 8 samples only cannot share 10 that way."""
    table = np.full((1, 9), 5.0)
    table[0, [4, 8]] = 1.0
    table[0, 2] = 3.0
    curves = RankCurves(
        fixed=np.zeros(2),
        per_sample=np.ones(2),
        saturation=np.zeros(2),
        scale=np.ones(2),
        row=np.zeros(2, dtype=np.int64),
        table=table,
        first=np.zeros((2, 2)),
    )
    segment = Segment(0, 1, np.ones(2), np.zeros(2), np.ones(2, dtype=bool))
    best = Oracle(curves, Bounds.of(2, 1, 8), 10).best(segment, StepRule())
    assert (best.seconds, sorted(best.batch_sizes.tolist())) == (3.0, [2, 8])


def test_thousands_of_equal_ranks_share_the_surplus():
    size = 4096
    curves = RankCurves(
        fixed=np.zeros(size),
        per_sample=np.ones(size),
        saturation=np.zeros(size),
        scale=np.ones(size),
        row=np.full(size, -1),
        table=np.zeros((0, 0)),
        first=np.zeros((2, size)),
    )
    segment = Segment(0, 1, np.ones(size), np.zeros(size), np.ones(size, dtype=bool))
    best = Oracle(curves, Bounds.of(size, 1), 32 * size + 1).best(segment, StepRule())
    assert best.seconds == pytest.approx(33)
    assert best.batch_sizes.sum() == 32 * size + 1
    assert best.batch_sizes.min() >= 31


def test_ranks_that_cannot_take_the_batch_are_told():
    curves = random_curves(np.random.default_rng(1), [0, 0], 8)
    present = np.asarray([True, False])
    segment = Segment(0, 1, np.ones(2), np.zeros(2), present)
    with pytest.raises(ValueError, match=r"can take 1 to 6 samples.*global_batch_size=10"):
        Oracle(curves, Bounds.of(2, 1, 6), 10).best(segment, StepRule())


@settings(max_examples=150)
@given(
    allowed=st.lists(
        st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True), min_size=1, max_size=4
    ),
    solid=st.lists(st.integers(1, 6), max_size=2),
    data=st.data(),
)
def test_give_back_finds_every_sum_that_exists(allowed, solid, data):
    holes = {rank: np.asarray(sorted(units)) for rank, units in enumerate(allowed)}
    caps = np.asarray([max(units) for units in allowed] + solid)
    low = np.asarray([min(units) for units in allowed] + [1] * len(solid))
    total = data.draw(st.integers(0, int(caps.sum())))
    choices = [*(units.tolist() for units in holes.values()), *(range(1, cap + 1) for cap in solid)]
    exists = any(sum(plan) == total for plan in itertools.product(*choices))
    units = give_back(caps, total, low, holes)
    assert (units is not None) == exists
    if units is not None:
        assert units.sum() == total
        assert all(unit in choice for unit, choice in zip(units, choices, strict=True))
