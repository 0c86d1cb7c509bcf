"""Lines through points: their inverse, asked for one deadline or for many between two."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing.curves import Grid
from hvd_dbs.balancing.point_curves import PointCurves

SIZE, MOST = 30, 60


def curves_with_teeth(rng: np.random.Generator) -> PointCurves:
    """Ranks that visited one to five batch sizes, some of them faster than smaller ones."""
    points, times = np.full((2, 5, SIZE), np.nan)
    for rank in range(SIZE):
        visited = np.sort(rng.choice(np.arange(1, 50), rng.integers(1, 6), replace=False))
        points[: visited.size, rank] = visited
        times[: visited.size, rank] = (5 + visited) * rng.uniform(0.6, 1.6, visited.size)
    return PointCurves(points, times, rng.uniform(0.2, 2.0, SIZE), np.zeros(SIZE))


@pytest.mark.parametrize("multiple_of", [1, 4])
@pytest.mark.parametrize("seed", range(5))
class TestInverse:
    def test_is_the_largest_batch_size_in_time(self, seed, multiple_of):
        rng = np.random.default_rng(seed)
        curves = curves_with_teeth(rng)
        grid, rows = random_grid(rng, multiple_of), np.array([2, 3, 17, 29])
        for deadline in rng.uniform(1.0, 80.0, 9):
            units = curves.units_within(deadline, grid)
            assert units.tolist() == by_trying(curves.seconds, deadline, grid).tolist()
            some = curves.take(rows).units_within(deadline, grid.take(rows))
            assert some.tolist() == units[rows].tolist()

    def test_narrow_says_the_same_between_its_deadlines(self, seed, multiple_of):
        rng = np.random.default_rng(seed)
        curves, grid = curves_with_teeth(rng), random_grid(rng, multiple_of)
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


def test_a_rank_a_little_late_keeps_most_of_its_samples():
    """Points close to each other that drift has mixed up made a slope of nearly nothing."""
    times = np.array([[0.0264], [0.0266]])
    curves = PointCurves(
        np.array([[34.0], [43.0]]), times, slope=np.array([0.00003]), fixed=np.zeros(1)
    )
    assert curves.seconds(np.array([20.0]))[0] < 0.0245


def test_fewer_samples_than_a_slow_smallest_point_take_no_longer_than_more_samples():
    """A tooth at the smallest batch size, or one that was measured beside something else."""
    times = np.array([[0.05], [0.03]])
    curves = PointCurves(
        np.array([[20.0], [30.0]]), times, slope=np.array([0.001]), fixed=np.zeros(1)
    )
    assert curves.seconds(np.array([20.0]))[0] == 0.05
    assert curves.seconds(np.array([19.0]))[0] <= 0.03
    grid = Grid(np.array([1]), np.array([19]))
    assert curves.units_within(0.03, grid)[0] == 19
