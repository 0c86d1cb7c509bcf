"""The benchmark of the simulator and of decisions runs, and shows what was asked for."""

from __future__ import annotations

import sys

from benchmarks import simulator


def test_all_presets_that_decide_have_a_line(monkeypatch, capsys):
    monkeypatch.setattr(simulator, "RANK_STEPS", 6400)
    given = ["simulator", "--ranks", "64", "--decision-ranks", "64", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", given)
    simulator.main()
    speeds, decisions = capsys.readouterr().out.split("\n\n")
    assert [line.split()[1:3] for line in speeds.splitlines()[2:]] == [
        [name, preset] for name in simulator.CLASSES for preset in simulator.CHEAP
    ]
    for preset in ("dbs", "lb_bsp_cpu", "lb_bsp_gpu", "omnilearn", "cannikin", "adaptive"):
        assert f"\n{preset:<11} contention " in decisions
