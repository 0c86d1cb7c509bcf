"""The ablation switches mechanisms off, pairs runs by seed, and does not hide what it cannot do."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.ablation import __main__ as command
from benchmarks.ablation.cases import Cases
from benchmarks.ablation.mechanisms import MECHANISMS, Mechanism
from benchmarks.ablation.runs import WHOLE, Task
from benchmarks.ablation.table import Difference
from hvd_dbs.balancing.solvers import value_of_change
from hvd_dbs.balancing.time_models import posterior

SHORT = Cases(steps=100)


def ablate(monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["ablation", "--ranks", "4", "--steps", "100", *options])
    command.main()


@pytest.mark.parametrize("name", MECHANISMS)
def test_each_mechanism_is_off_inside_and_on_again_afterwards(name):
    patches = MECHANISMS[name].patches
    before = [getattr(target, attribute) for target, attribute, _ in patches]
    with MECHANISMS[name].switched_off():
        inside = [getattr(target, attribute) for target, attribute, _ in patches]
    assert inside == [value for _, _, value in patches]
    assert before == [getattr(target, attribute) for target, attribute, _ in patches]
    assert not any(a == b for a, b in zip(before, inside, strict=True))


def test_no_mechanism_breaks_the_solver_or_the_model_when_it_is_off():
    task = Task(Cases(steps=60), ("neighbours", 4, 201), (WHOLE, *MECHANISMS))
    assert set(task.run()) == {WHOLE, *MECHANISMS}


@pytest.mark.parametrize(
    ("attribute", "value", "error"),
    [
        ("_REMOVED", 0, AttributeError),
        ("_HOPE", value_of_change._HOPE, ValueError),
    ],
    ids=["gone", "the same already"],
)
def test_a_patch_that_no_longer_takes_is_an_error(attribute, value, error):
    patch = (value_of_change, attribute, value)
    with pytest.raises(error, match=attribute), Mechanism("Stale.", (patch,)).switched_off():
        pass


def test_other_decisions_are_seen_and_equal_ones_too():
    task = Task(SHORT, ("static", 4, 201), (WHOLE, "kinds", "precautions"))
    results = task.run()
    assert results["kinds"][:2] != results[WHOLE][:2]
    assert results["precautions"][:2] == results[WHOLE][:2]


@pytest.mark.parametrize(
    ("target", "attribute"), [(value_of_change, "outlooks"), (posterior, "learn")]
)
def test_a_patch_that_breaks_the_solver_or_the_model_is_an_error(monkeypatch, target, attribute):
    broken = {"broken": Mechanism("Broken.", ((target, attribute, None),))}
    monkeypatch.setattr("benchmarks.ablation.runs.MECHANISMS", broken)
    with pytest.raises(RuntimeError, match="broken"):
        Task(SHORT, ("static", 4, 201), (WHOLE, "broken")).run()


def test_the_table_pairs_runs_by_seed_and_a_file_keeps_them(monkeypatch, capsys, tmp_path):
    options = ["--classes", "static;jitter", "--mechanisms", "kinds;surprise: drift"]
    options += ["--json", str(tmp_path / "runs.json")]
    ablate(monkeypatch, *options, "--seeds", "1")
    ablate(monkeypatch, *options, "--seeds", "2")
    table = capsys.readouterr().out.split("seeds a class: 2")[1]
    assert [line.split(" |")[0] for line in table.splitlines() if line.startswith("| ")] == [
        "| mechanism",
        "| (all of `adaptive`)",
        "| kinds",
        "| surprise: drift",
    ]
    monkeypatch.setattr(Task, "run", None)  # Nothing is run again.
    ablate(monkeypatch, *options, "--seeds", "2")
    assert capsys.readouterr().out.split("seeds a class: 2")[1] == table


def test_a_mechanism_that_changes_no_decision_in_any_class_is_an_error(monkeypatch):
    monkeypatch.setattr(Cases, "names", ("static",))
    with pytest.raises(SystemExit, match="slow periods: end"):
        ablate(monkeypatch, "--mechanisms", "slow periods: end", "--seeds", "1")


def test_seeds_that_constants_were_chosen_with_are_refused(monkeypatch):
    with pytest.raises(SystemExit, match="12"):
        ablate(monkeypatch, "--first-seed", "12", "--seeds", "1")


def test_a_gain_counts_beyond_its_interval_and_not_for_a_few_seeds():
    whole = np.array([0.95, 0.97, 0.93, 0.94, 0.96])
    yes = [True] * len(whole)
    found = Difference.of(whole, whole - [0.02, 0.03, 0.01, 0.02, 0.02], yes)
    deviation = (0.0002 / 4) ** 0.5
    assert (found.mean, found.half) == pytest.approx((0.02, 2.78 * deviation / 5**0.5))
    assert found.is_gain
    assert not Difference.of(whole, whole - [0.02, 0.06, 0.0, 0.0, 0.02], yes).is_gain
    assert Difference.of(whole, whole - 0.006, yes).is_gain
    assert not Difference.of(whole, whole - 0.004, yes).is_gain
    assert Difference.of(whole, whole + 0.006, yes).is_loss
    assert not Difference.of(whole[:4], whole[:4] - 0.006, yes[:4]).is_gain
    assert not Difference.of([0.9], [0.8], [True]).is_gain


@pytest.mark.parametrize("name", SHORT.names)
def test_the_same_seed_is_the_same_case(name):
    ranks = SHORT.ranks(name, [4])[0]
    first, again = (SHORT.scenarios(name, ranks, 201) for _ in range(2))
    assert [case.name for case in first] == [case.name for case in again]
    assert {case.seed for case in first} == {201}
    assert {case.steps for case in first} <= {50, 100}
