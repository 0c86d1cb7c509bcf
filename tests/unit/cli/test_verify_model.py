"""`hvd-dbs verify --model`: its plans, verdicts and causes, without a job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hvd_dbs.balancing.bounds import Bounds
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.cli.verify.causes import Model, Step, causes
from hvd_dbs.cli.verify.model_findings import (
    Comparison,
    Difference,
    MetricDifference,
    can_compare,
    failed_metrics,
    metrics_finding,
    model_findings,
    weights_finding,
)
from hvd_dbs.cli.verify.model_problem import ModelProblem, UnevenPlans

KERNEL = Difference("dense/kernel", 1e-8, rounding=1e-8, moved=0.05, size=0.2, count=100)
BIAS = Difference("dense/bias", 1e-8, rounding=1e-8, moved=0.02, size=0.02, count=10)
LOSS = MetricDifference("loss", 0, expected=0.7, given=0.7 + 1e-7, rounding=1e-7)
ALIKE = Comparison([KERNEL, BIAS], [LOSS], ["a", "a"], [(3, 1), (1, 3)])

STEP = Step(
    changed_layer=None,
    whole_loss=2.0,
    mean_loss=2.0,
    part_losses=(1.0, 3.0),
    batch_sizes=(8, 8),
    rounding=2e-5,
    gradient=0.0,
    sum_gradient=0.5,
)


def test_every_third_plan_leaves_all_ranks_but_one_the_least():
    problem = Problem(64, Bounds.of(4, minimum=1), Plan((16, 16, 16, 16)))
    solver, found = UnevenPlans(7), []
    state = solver.init()
    for _ in range(12):
        proposal, state = solver.solve(state, problem, None)
        found.append(proposal.plan.batch_sizes)
    assert all(sorted(plan) == [1, 1, 1, 61] for plan in found[2::3])
    assert len({plan.index(61) for plan in found[2::3]}) == 4
    assert len(set(found)) == 12


@pytest.mark.parametrize(("steps", "available"), [(2, 10**6), (12, 10**6), (12, 70), (13, 32)])
def test_as_many_steps_as_wanted_in_two_epochs_or_more(steps, available):
    problem = ModelProblem.of(2, 0, 32, steps, available)
    assert problem.epochs >= 2
    assert steps <= problem.epochs * problem.num_steps <= max(steps + problem.epochs, 4)
    assert problem.num_samples <= available


def test_fewer_samples_than_a_step_has_are_refused():
    with pytest.raises(ValueError, match="31 samples; expected at least the global batch of 32"):
        ModelProblem.of(2, 0, 32, 12, 31)


def test_a_permutation_keeps_the_samples_of_each_batch():
    problem = ModelProblem.of(2, 3, 8, 6, 100)
    batches, others = problem.global_batches(), problem.global_batches(permutation=1)
    assert batches.keys() == others.keys()
    assert all(set(batches[step]) == set(others[step]) for step in batches)
    assert any(not np.array_equal(batches[step], others[step]) for step in batches)
    assert len(np.unique(np.concatenate([batches[0, step] for step in range(3)]))) == 17


def test_all_is_well():
    found = model_findings(ALIKE)
    assert [one.is_ok for one in found] == [True] * 5
    assert "2 different ones in 2 steps" in found[1].text
    assert failed_metrics(ALIKE) == []


def test_a_weight_that_differs_is_named_against_update_and_size():
    wrong = replace(KERNEL, difference=0.01)
    finding = weights_finding(replace(ALIKE, weights=[BIAS, wrong]))
    assert not finding.is_ok
    assert "1 of 2 differ, dense/kernel most, by 0.01" in finding.text
    assert "20 % of what training moved it by, 5 % of its size" in finding.text


@pytest.mark.parametrize("difference", [float("nan"), float("inf")])
def test_nan_is_a_difference(difference):
    comparison = replace(ALIKE, weights=[KERNEL, replace(BIAS, difference=difference)])
    finding = weights_finding(comparison)
    assert not finding.is_ok
    assert "dense/bias most: it is NaN or infinite" in finding.text
    metric = replace(LOSS, given=difference)
    assert not metrics_finding(replace(ALIKE, metrics=[metric])).is_ok


def test_what_rounding_explains_is_allowed():
    noise = Difference("key/bias", 5e-6, rounding=1e-6, moved=1e-6, size=1e-6, count=10)
    assert weights_finding(replace(ALIKE, weights=[KERNEL, noise])).is_ok
    assert not weights_finding(replace(ALIKE, weights=[KERNEL, replace(noise, rounding=0)])).is_ok


def test_a_metric_that_differs_is_shown_beside_the_expected_one():
    comparison = replace(ALIKE, metrics=[LOSS, replace(LOSS, name="auc", epoch=1, given=0.8)])
    finding = metrics_finding(comparison)
    assert not finding.is_ok
    assert "auc of epoch 1 is 0.8, in one process 0.7" in finding.text
    assert failed_metrics(comparison) == ["auc"]


def test_half_precision_allows_more_of_a_metric():
    comparison = replace(ALIKE, metrics=[replace(LOSS, given=0.701)])
    assert not metrics_finding(comparison).is_ok
    assert metrics_finding(replace(comparison, roundoff=2.0**-8)).is_ok


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"moved": 0.0}, "training does not move them"),
        ({"moved": float("nan")}, "makes them NaN or infinite"),
        ({"rounding": 0.01}, "one process itself learns something else"),
        ({"rounding": float("nan")}, "one process itself learns something else"),
    ],
)
def test_what_cannot_be_compared_proves_nothing(change, text):
    weights = [replace(KERNEL, **change), replace(BIAS, **change)]
    comparison = replace(ALIKE, weights=weights)
    finding = can_compare(comparison)
    assert not finding.is_ok
    assert not any("weights as of one process" in one.text for one in model_findings(comparison))
    assert text in finding.text


def test_ranks_with_other_weights_are_named():
    found = model_findings(replace(ALIKE, digests=["a", "b"]))
    assert [one.text for one in found if not one.is_ok] == [
        "weights are the same on all ranks, bit for bit: rank 1: other ones than on rank 0"
    ]


@pytest.mark.parametrize(
    ("model", "step", "texts"),
    [
        ({}, {"changed_layer": "norm (Norm)"}, ["norm (Norm) gives another output"]),
        ({"own_statistics": ["bn (BatchNormalization)"]}, {}, ["synchronized=True"]),
        (
            {"own_statistics": ["bn (BatchNormalization)"]},
            {"changed_layer": "bn (BatchNormalization)", "mean_loss": 3.0},
            ["synchronized=True"],
        ),
        (
            {"own_statistics": ["bn (BatchNormalization)"]},
            {"changed_layer": "norm (Norm)"},
            ["synchronized=True", "norm (Norm) gives another output"],
        ),
        ({}, {"mean_loss": 1.0, "part_losses": (0.8, 1.2)}, ["looks like a sum over samples"]),
        ({}, {"mean_loss": 2.1, "part_losses": (2.0, 2.2)}, ["is not a mean over samples, but"]),
        ({}, {"mean_loss": 2.1}, ["a mean over samples in plain Keras"]),
        ({}, {"mean_loss": float("nan"), "part_losses": (1.0, 2.0)}, ["is not a mean over"]),
        ({"has_own_step": True}, {"gradient": 0.1}, ["a loss in train_step is not a mean"]),
        (
            {"has_own_step": True},
            {"gradient": 0.1},
            ["hvd.global_sum(values). If train_step clips gradients, let the optimizer"],
        ),
        ({}, {"gradient": 0.5, "sum_gradient": 1e-6}, ["is a sum over samples"]),
        ({"optimizers": ["Adam"]}, {}, ["not found: layers, losses and gradients"]),
        ({"half_precision": "mixed_float16"}, {"gradient": 0.1}, ["not a mean", "float16 rounds"]),
    ],
)
def test_causes_of_weights_that_differ(model, step, texts):
    found = causes(Model(**model), replace(STEP, **step), weights_differ=True)
    assert len(found) == len(texts)
    assert all(text in one for text, one in zip(texts, found, strict=True))


def test_causes_where_weights_are_alike():
    assert causes(Model(), None, weights_differ=False) == []
    found = causes(Model(drawn=["noise"]), None, weights_differ=False)
    assert len(found) == 1
    assert "noise drew random numbers" in found[0]
    found = causes(Model(batch_means=["d_loss", "g_loss"]), None, weights_differ=False)
    assert len(found) == 1
    assert "d_loss, g_loss counts steps" in found[0]
