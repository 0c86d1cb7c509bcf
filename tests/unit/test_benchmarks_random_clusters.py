"""Clusters drawn at random."""

from __future__ import annotations

import math

from benchmarks.random_clusters import cluster_of, main, over_oracle


def test_a_seed_is_a_cluster_and_another_one_another():
    assert cluster_of(1) == cluster_of(1) != cluster_of(2)
    clusters = [cluster_of(seed) for seed in range(40)]
    assert {2, 24} <= {cluster.size for cluster in clusters}
    assert any(cluster.communication.gradient_megabytes for cluster in clusters)
    assert any(cluster.disturbances for cluster in clusters)


def test_no_strategy_is_ahead_of_the_oracle():
    found = over_oracle(3, ["even", "adaptive"])
    assert all(0 < part <= 1 for part in found) and not math.isnan(sum(found))


def test_the_table_has_a_row_for_each_strategy(monkeypatch, capsys):
    given = "x --first-seed 3 --count 2 --jobs 1 --strategies even adaptive"
    monkeypatch.setattr("sys.argv", given.split())
    main()
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "2 clusters, seeds 3 to 4"
    assert [row.split()[1] for row in rows[4:]] == ["`even`", "`adaptive`"]
