"""Curves in pieces: their inverse, asked for one deadline or for many between two."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing.bounds import Bounds
from hvd_dbs.balancing.curves import Grid
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.balancing.solvers.equal_finish import plan_within
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
        curves = curves_with_teeth(rng).in_pieces()
        grid = random_grid(rng, multiple_of)
        for deadline in (0.0, *rng.uniform(1.0, 80.0, 8)):
            units = curves.units_within(deadline, grid)
            assert units.tolist() == by_trying(curves.seconds, deadline, grid).tolist()

    @pytest.mark.parametrize("kind", ["visited", "hopeful"])
    def test_narrow_says_the_same_between_its_deadlines(self, seed, multiple_of, kind):
        rng = np.random.default_rng(seed)
        visited = curves_with_teeth(rng)
        curves = visited.hopeful(0.1) if kind == "hopeful" else visited
        grid = random_grid(rng, multiple_of)
        rows = np.array([2, 3, 17, 29])
        for low, high in ((0.0, 50.0), (20.0, 22.0), (30.0, 60.0), (0.0, 1.0)):
            narrow = curves.narrow(low, high, grid)
            for deadline in np.linspace(low, high, 7):
                units = curves.units_within(deadline, grid)
                assert narrow.units_within(deadline, grid).tolist() == units.tolist()
                some = narrow.take(rows).units_within(deadline, grid.take(rows))
                assert some.tolist() == units[rows].tolist()

    def test_visited_points_say_the_same_as_their_pieces(self, seed, multiple_of):
        rng = np.random.default_rng(seed)
        curves = curves_with_teeth(rng)
        grid, rows = random_grid(rng, multiple_of), np.array([2, 3, 17, 29])
        pieces = curves.in_pieces()
        for deadline in (0.0, *rng.uniform(1.0, 80.0, 8)):
            units = pieces.units_within(deadline, grid)
            assert curves.units_within(deadline, grid).tolist() == units.tolist()
            some = curves.take(rows).units_within(deadline, grid.take(rows))
            assert some.tolist() == units[rows].tolist()
        for _ in range(8):
            samples = rng.integers(0, MOST, SIZE).astype(float)
            assert curves.seconds(samples) == pytest.approx(pieces.seconds(samples), rel=1e-12)


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


def test_a_plan_with_limited_growth_stays_near_what_was_visited():
    points = np.array([[10.0, 10.0], [20.0, np.nan]])
    one = np.ones(2)
    visited = VisitedCurves(points, 1.0 * points, one, one, one, one, SlowSpells.none(2))
    limits = visited.largest_after(1.3)
    assert limits.tolist() == [27.0, np.inf]
    problem = Problem(200, Bounds.of(2), Plan((100, 100)))
    assert plan_within(problem, visited, (0.0, 500.0)) == Plan((100, 100))
    assert plan_within(problem, visited, (0.0, 500.0), limits) == Plan((27, 173))
    assert plan_within(problem, visited, (0.0, 172.0), limits) is None
