"""The training benchmark's pure parts: figures, curves, search, which jobs run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import train
from benchmarks.training import rank_curves, report, static_search
from benchmarks.training.clusters import CLUSTERS, PLAIN, STATIC, STRATEGIES, Lengths
from benchmarks.training.figures import Summary, job_figures, steps_to_reach, without_epoch_starts

LINES = ((0.01, 0.001), (0.01, 0.002), (0.02, 0.004))


def line_curves(lines=LINES, most=120):
    points = rank_curves.points_around([most / len(lines)] * len(lines))
    seconds = np.array(
        [[a + c * b for b in row] for row, (a, c) in zip(points, lines, strict=True)]
    )
    return rank_curves.table(points, seconds, most)


def test_points_increase_and_start_at_one_sample():
    points = rank_curves.points_around([0.2, 3, 100])
    assert points.min() >= 1
    assert np.all(np.diff(points, axis=1) >= 1)
    assert points[2].tolist() == [40, 70, 100, 130, 180]


def test_lines_through_points_are_the_lines():
    curves = line_curves()
    for row, (a, c) in zip(curves, LINES, strict=True):
        np.testing.assert_allclose(row[1:], a + c * np.arange(1, 121))


def test_ideal_is_equal_finish_and_the_best_plan_is_next_to_it():
    curves = line_curves()
    expected = (120 + sum(a / c for a, c in LINES)) / sum(1 / c for _, c in LINES)
    assert rank_curves.ideal_seconds(curves) == pytest.approx(expected)
    plan = rank_curves.best_plan(curves)
    assert sum(plan) == 120
    assert expected <= rank_curves.plan_seconds(curves, plan) <= expected + 0.004


def test_a_moved_plan_keeps_its_sum_and_leaves_nobody_without_samples():
    assert static_search.moved((10, 20, 2), np.array([1.0, 2.0, 3.0]), 5) == (11, 20, 1)


def test_search_finds_the_best_split_from_a_wrong_start():
    truth = line_curves(((0.01, 0.001), (0.01, 0.002), (0.02, 0.008)))

    def trial(plan):
        busy = truth[np.arange(3), list(plan)]
        return float(busy.max()), busy

    plan, seconds = static_search.search(trial, line_curves(), num_moves=6)
    assert sum(plan) == 120
    best = rank_curves.plan_seconds(truth, rank_curves.best_plan(truth))
    assert min(seconds[plan]) <= 1.01 * best
    assert len(seconds[plan]) >= 3


def test_steps_to_reach_asks_for_good():
    slow, fast = [0.2] * 6, [0.1] * 20
    assert steps_to_reach([*slow, *fast], 0.1) == (6, pytest.approx(1.2))
    assert steps_to_reach([*slow, 0.1, 0.2, 0.1, 0.1, *fast], 0.1)[0] == 6
    assert steps_to_reach([*fast[:6], *slow, *slow, *slow], 0.1) is None
    assert steps_to_reach(fast, 0.1) == (0, 0.0)


def test_first_steps_of_epochs_do_not_count():
    assert without_epoch_starts([9, 1, 2, 9, 3, 4], 3).tolist() == [1, 2, 3, 4]


def test_summary_is_median_and_quartiles():
    assert Summary.of([5, 1, 2, 3, 4]) == Summary(3, 2, 4, 5)


def test_other_models_run_on_one_cluster():
    jobs = train.plan_jobs(("equal", "mixed"), ("digits", "residual"), None, False)
    assert [(job.cluster, job.model) for job in jobs] == [
        ("equal", "digits"),
        ("mixed", "digits"),
        ("mixed", "residual"),
    ]
    assert jobs[0].strategies == STRATEGIES
    assert len(train.plan_jobs(("equal", "mixed"), ("digits", "residual"), None, True)) == 4


@pytest.mark.parametrize("name", CLUSTERS)
def test_each_cluster_has_a_best_static_split_or_an_even_one(name):
    strategies = CLUSTERS[name].strategies(STRATEGIES)
    assert (STATIC in strategies) != ("even" in strategies)
    assert strategies[0] == PLAIN


def test_lengths_that_say_nothing_are_refused():
    with pytest.raises(ValueError, match="too short"):
        Lengths(steps=3)


def measured_job(cluster, lengths):
    """A job in which everything takes as long as its curves say: plain is twice the ideal."""
    is_equal, neighbour = CLUSTERS[cluster].is_equal, CLUSTERS[cluster].neighbour_of
    names = CLUSTERS[cluster].strategies((PLAIN, "even", STATIC, "adaptive"))
    points = rank_curves.points_around([50, 50])
    curve = (points * 0.002).tolist()  # 100 samples: ideal 0.1 s.
    slow = (points * 0.004).tolist()
    cycle = lengths.cycle
    epochs = 1 if neighbour is None else cycle.num_epochs
    steps = {name: [0.1] * lengths.steps * epochs for name in names}
    if not is_equal:
        steps[PLAIN] = [0.2] * lengths.steps * epochs
    if neighbour is not None:
        steps["adaptive"][cycle.begin : cycle.end] = [0.2] * (cycle.end - cycle.begin)
        steps["adaptive"][cycle.begin : cycle.begin + 4] = [0.9] * 4
    return {
        "cluster": cluster,
        "speeds": CLUSTERS[cluster].speeds,
        "neighbour_of": neighbour,
        "model": "digits",
        "lengths": {"rounds": 2, "steps": lengths.steps},
        "global_batch_size": 100,
        "starts": {"adaptive": [0.2] * 7 + [0.1] * 20},
        "rounds": {name: [steps[name]] * 2 for name in names},
        "plans": {name: [None if name == PLAIN else [50, 50]] * 2 for name in names},
        "overhead_rounds": {PLAIN: [[9, 1, 1]], "even": [[9, 1.01, 1.01]]} if is_equal else {},
        "busy": {"adaptive": {"batch_sizes": [50, 50], "seconds": [[0.09, 0.1], [0.1, 0.09]]}},
        "curve_points": points.tolist(),
        "curve_seconds": {"calm": [curve] * 3, "busy": [slow] * 3 if neighbour else []},
    }


def test_figures_of_a_static_cluster():
    figures = job_figures(measured_job("pair", Lengths(rounds=2)))
    adaptive = figures["strategies"]["adaptive"]
    assert figures["ideal_step_seconds"]["median"] == pytest.approx(0.1)
    assert adaptive["of_ideal"]["median"] == pytest.approx(1)
    assert adaptive["of_plain"]["median"] == pytest.approx(2)
    assert adaptive["of_best_static"]["median"] == pytest.approx(1)
    assert adaptive["samples_per_second"]["median"] == pytest.approx(1000)
    assert adaptive["start"] == {"steps": 7, "seconds": pytest.approx(1.4)}
    assert adaptive["where"]["slowest_busy"] == pytest.approx(0.1)
    assert figures["overhead"] == {}


def test_figures_tell_by_how_much_steps_are_longer_than_those_of_dbs_and_how_surely():
    measured = measured_job("pair", Lengths(rounds=2))
    rounds = measured["rounds"]
    rounds["dbs"], rounds["adaptive"] = [[0.1] * 12, [0.2] * 12], [[0.11] * 12, [0.224] * 12]
    measured["plans"]["dbs"] = measured["plans"]["adaptive"]
    strategies = job_figures(measured)["strategies"]
    # Ratios of 1.1 and 1.12: their deviation is 0.0141, and t is 12.71 for one degree of freedom.
    assert strategies["adaptive"]["over_dbs"] == pytest.approx({"mean": 0.11, "half": 0.1271})
    assert "over_dbs" not in strategies["dbs"]
    job = {**measured, "figures": job_figures(measured)}
    assert "| adaptive | +11.0 ±12.7 % |" in report.tables(job)


def test_jobs_on_the_same_cluster_are_compared_by_their_means():
    jobs = []
    for longer in (1.1, 1.12):
        measured = measured_job("pair", Lengths(rounds=2))
        measured["rounds"] |= {"dbs": [[0.1] * 12] * 2, "adaptive": [[0.1 * longer] * 12] * 2}
        measured["plans"]["dbs"] = measured["plans"]["adaptive"]
        jobs.append({**measured, "figures": job_figures(measured)})
    other = {**jobs[0], "cluster": "slow_rank"}
    lines = report.over_jobs([*jobs, other])
    assert [line.partition(": ")[2] for line in lines if "adaptive" in line] == [
        "adaptive over dbs +11.0 ±12.7 %"
    ]


def test_figures_of_equal_ranks_tell_the_overhead():
    figures = job_figures(measured_job("equal_pair", Lengths(rounds=2)))
    assert figures["overhead"]["even"]["median"] == pytest.approx(0.01)


def test_figures_with_a_neighbour_tell_how_soon_a_strategy_is_back():
    figures = job_figures(measured_job("neighbour_pair", Lengths(rounds=2)))
    comes = figures["strategies"]["adaptive"]["neighbour"]["comes"]
    assert comes["settled_of_ideal"] == pytest.approx(1)
    assert comes["to_ideal"]["steps"] == 4
    assert 0.1 < figures["ideal_step_seconds"]["median"] < 0.2


@pytest.mark.parametrize("cluster", ["pair", "equal_pair", "neighbour_pair"])
def test_report_and_picture(cluster, tmp_path):
    job = json.loads(json.dumps(measured_job(cluster, Lengths(rounds=2))))
    job["figures"] = json.loads(json.dumps(job_figures(job)))
    text = "\n".join(report.tables(job))
    assert "| adaptive |" in text
    pytest.importorskip("matplotlib")
    report.draw([job], tmp_path / "train.png")
    assert (tmp_path / "train.png").stat().st_size > 1000
