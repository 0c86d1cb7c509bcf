"""Clusters drawn at random."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("words", "processes"), [("random_clusters --count 500", 2), ("ablation --ranks 64", 3)]
)
def test_a_benchmark_that_is_ended_leaves_no_process(words, processes, number):
    """Once, work that waited went on after Ctrl-C, and workers outlived a benchmark.

    Spawned workers have one more process beside them.
    """
    command = [sys.executable, "-m", *f"benchmarks.{words} --jobs 2".split()]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while sum(map(_leaves_ctrl_c_to_others, children.read_text().split())) < processes:
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)  # They have to know their parent.
        process.send_signal(number)
        process.communicate(timeout=20)  # Ends when the workers have ended as well.
        assert process.returncode == -number
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _leaves_ctrl_c_to_others(process):
    status = Path(f"/proc/{process}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn"))
    return int(ignored.split()[1], 16) >> (signal.SIGINT - 1) & 1
