"""Curves in pieces: their inverse, asked for one deadline or for many between two."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing.curves import Grid
from hvd_dbs.balancing.visited_curves import SlowSpells, VisitedCurves

SIZE, MOST = 30, 60


def curves_with_teeth(rng: np.random.Generator) -> VisitedCurves:
    """Ranks that visited one to five batch sizes, some of them faster than smaller ones."""
    points, times = np.full((2, 5, SIZE), np.nan)
    for rank in range(SIZE):
        visited = np.sort(rng.choice(np.arange(1, 50), rng.integers(1, 6), replace=False))
        points[: visited.size, rank] = visited
        times[: visited.size, rank] = (5 + visited) * rng.uniform(0.6, 1.6, visited.size)
    none, spells = np.zeros(SIZE), SlowSpells.none(SIZE)
    return VisitedCurves(points, times, rng.uniform(0.2, 2.0, SIZE), none, none, none, spells)


@pytest.mark.parametrize("multiple_of", [1, 4])
@pytest.mark.parametrize("seed", range(5))
class TestInverse:
    def test_is_the_largest_batch_size_in_time(self, seed, multiple_of):
        rng = np.random.default_rng(seed)
        curves = curves_with_teeth(rng).expected()
        grid = random_grid(rng, multiple_of)
        for deadline in (0.0, *rng.uniform(1.0, 80.0, 8)):
            units = curves.units_within(deadline, grid)
            assert units.tolist() == by_trying(curves.seconds, deadline, grid).tolist()

    def test_narrow_says_the_same_between_its_deadlines(self, seed, multiple_of):
        rng = np.random.default_rng(seed)
        curves = curves_with_teeth(rng).hopeful(0.1)
        grid = random_grid(rng, multiple_of)
        rows = np.array([2, 3, 17, 29])
        for low, high in ((0.0, 50.0), (20.0, 22.0), (30.0, 60.0), (0.0, 1.0)):
            narrow = curves.narrow(low, high, grid)
            for deadline in np.linspace(low, high, 7):
                units = curves.units_within(deadline, grid)
                assert narrow.units_within(deadline, grid).tolist() == units.tolist()
                some = narrow.take(rows).units_within(deadline, grid.take(rows))
                assert some.tolist() == units[rows].tolist()


def random_grid(rng: np.random.Generator, multiple_of: int) -> Grid:
    low = rng.integers(0, 5, SIZE)
    return Grid(low, low + rng.integers(0, MOST // multiple_of - 5, SIZE), multiple_of)


def by_trying(seconds, deadline: float, grid: Grid) -> np.ndarray:
    """What `units_within` promises, one batch size after the other."""
    found = grid.low - 1
    for units in range(int(grid.high.max()) + 1):
        in_time = seconds(np.full(SIZE, float(units * grid.multiple_of))) <= deadline
        found = np.where(in_time & (grid.low <= units) & (units <= grid.high), units, found)
    return found


def test_a_growth_limit_ends_the_last_piece_where_more_than_one_point_was_visited():
    points = np.array([[10.0, 10.0], [20.0, np.nan]])
    one = np.ones(2)
    visited = VisitedCurves(points, 1.0 * points, one, one, one, one, SlowSpells.none(2))
    grid = Grid(np.zeros(2, dtype=np.int64), np.full(2, 1000))
    assert visited.expected(1.3).units_within(500.0, grid).tolist() == [27, 500]
    assert visited.expected().units_within(500.0, grid).tolist() == [500, 500]
    assert visited.expected(1.3).known.all()
