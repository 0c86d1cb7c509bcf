"""The benchmark of verdicts: what it compares, and that it says where a verdict is wrong."""

from __future__ import annotations

import pytest

from benchmarks.training.clusters import CLUSTERS
from benchmarks.verdicts.__main__ import result_of
from benchmarks.verdicts.cases import CASES, Case
from tests.journals import simulated, written


def job(tmp_path, kind, steps):
    part = simulated(kind)
    text = written(tmp_path / "run.jsonl", part.job, *part.rounds).read_text()
    rounds = {name: [[9.0, 9.0, *(seconds,) * 4]] for name, seconds in steps.items()}
    return {"journals": {"even": text}, "rounds": rounds}


def test_gains_that_were_foreseen_and_measured_stand_in_the_table(tmp_path):
    given = job(tmp_path, "slow rank", {"even": 0.106, "adaptive": 0.053})
    healthy = {"rounds": {"even": [[9.0, 9.0, 0.053, 0.053]]}}
    result = result_of("slow", Case(("ranks", (3,)), "slow_rank", "equal_pair"), given, healthy)
    assert result.is_right
    balanced, repaired = result.gains["balance"], result.gains["repair"]
    assert balanced.foreseen == pytest.approx(2.15, rel=0.05) and balanced.measured == 2.0
    assert repaired.foreseen == pytest.approx(2.41, rel=0.02) and repaired.measured == 2.0
    assert balanced.least <= balanced.foreseen <= balanced.most
    rows = list(result.rows)
    assert rows[1].startswith("| slow | right | repair | 2.4") and rows[1].endswith("| +20 % |")


def test_a_wrong_verdict_is_marked(tmp_path):
    given = job(tmp_path, "slow rank", {"even": 0.1, "adaptive": 0.05, "best static": 0.05})
    for cause in (("input", (3,)), ("ranks", (2,))):
        result = result_of("x", Case(cause, "equal_pair"), given, given)
        assert not result.is_right and "**wrong**" in next(result.rows)
    nothing = result_of("x", Case(("none", ()), "equal_pair"), given, given)
    assert list(nothing.gains) == ["balance"]


def test_all_clusters_of_the_cases_exist():
    for case in CASES.values():
        assert case.cluster in CLUSTERS and (case.healthy or case.cluster) in CLUSTERS
        assert all(rank < CLUSTERS[case.cluster].size for rank in case.cause[1])
