"""`hvd-dbs verify`: its problem and its verdicts, without a job."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from hvd_dbs.balancing.bounds import Bounds
from hvd_dbs.balancing.plan import Plan, Problem
from hvd_dbs.cli.main import main
from hvd_dbs.cli.verify.findings import Report, sampling_findings, training_findings
from hvd_dbs.cli.verify.problem import RandomPlans, VerifyProblem, plain_average

PROBLEM = VerifyProblem(size=3, seed=1, epochs=2)
LAST = PROBLEM.num_steps - 1
REPORT = Report(weights=1e-7, metrics=1e-7, control=0.1, digest="a")


def seen():
    """What three ranks see with plans that change: rank by rank, the parts of each batch."""
    random = np.random.default_rng(0)
    result = {}
    for step, (numbers, _) in PROBLEM.global_batches().items():
        borders = np.sort(random.integers(0, len(numbers) + 1, 2))
        parts = np.split(numbers, borders)
        result[step] = [(rank, part.tolist()) for rank, part in enumerate(parts)]
    return result


def failed(findings):
    return [one.text.partition(":")[0] for one in findings if not one.is_ok]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 16, 17, 64])
def test_the_last_batch_leaves_a_rank_without_samples(size):
    problem = VerifyProblem(size, seed=0, epochs=2)
    batches, last = problem.global_batches(), problem.num_steps - 1
    assert {len(numbers) for (_, step), (numbers, _) in batches.items() if step < last} == {
        problem.global_batch_size
    }
    assert 0 < len(batches[1, last][0]) < max(size, 2)
    assert problem.global_batch_size >= size
    for epoch in range(2):
        numbers = np.concatenate([n for (e, _), (n, _) in batches.items() if e == epoch])
        assert sorted(numbers.tolist()) == list(range(problem.num_samples))


def test_random_plans_depend_on_seed_and_number_alone():
    problem = Problem(64, Bounds.of(4, minimum=1), Plan((16, 16, 16, 16)))

    def plans(seed):
        solver, found = RandomPlans(seed), []
        state = solver.init()
        for _ in range(5):
            proposal, state = solver.solve(state, problem, None)
            found.append(proposal.plan.batch_sizes)
        return found

    assert plans(0) == plans(0) != plans(1)
    assert len(set(plans(0))) == 5
    assert all(sum(plan) == 64 and min(plan) >= 1 for plan in plans(0))


def test_the_plain_average_counts_each_rank_the_same():
    numbers, weights = plain_average([[5], [6, 7, 8], []])
    assert numbers.tolist() == [5, 6, 7, 8]
    losses = np.array([1.0, 4.0, 4.0, 7.0])
    assert np.mean(losses * weights) == pytest.approx((1.0 + 5.0) / 2)


def test_all_is_well():
    findings = [*sampling_findings(PROBLEM, seen()), *training_findings(PROBLEM, seen(), [REPORT])]
    assert failed(findings) == []
    assert len(findings) == 10


def repeat_a_sample(ranks):
    ranks[0, 0][0][1].append(ranks[0, 0][1][1][0])


def swap_two_steps(ranks):
    ranks[0, 0], ranks[0, 1] = ranks[0, 1], ranks[0, 0]


def skip_a_step(ranks):
    del ranks[1, LAST][2]


def make_one_step_more(ranks):
    ranks[1, LAST + 1] = [(rank, []) for rank in range(3)]


def keep_the_plan(ranks):
    for step, rows in ranks.items():
        numbers = [number for _, row in rows for number in row]
        ranks[step] = [(rank, row.tolist()) for rank, row in enumerate(np.array_split(numbers, 3))]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (repeat_a_sample, ["every sample once an epoch", "local batch sizes sum to the global"]),
        (swap_two_steps, ["each global batch has the samples that an even split has"]),
        (skip_a_step, ["the same steps on all ranks"]),
        (make_one_step_more, ["the same steps on all ranks"]),
        (keep_the_plan, ["plans change"]),
    ],
)
def test_what_ranks_must_not_read(change, expected):
    ranks = seen()
    ranks[1, LAST][2][1].clear()
    ranks[1, LAST][0] = (0, PROBLEM.global_batches()[1, LAST][0].tolist())
    ranks[1, LAST][1][1].clear()
    assert failed(sampling_findings(PROBLEM, ranks)) == []
    change(ranks)
    found = failed(sampling_findings(PROBLEM, ranks))
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"weights": 2e-5}, ["weights as of one process"]),
        ({"weights": float("nan")}, ["weights as of one process", "a rank without samples"]),
        ({"metrics": 2e-5}, ["loss and accuracy"]),
        ({"metrics": float("nan")}, ["loss and accuracy"]),
        ({"control": 5e-4}, ["an average that does not weigh"]),
        ({"digest": "b"}, ["weights are the same on all ranks"]),
    ],
)
def test_what_one_rank_must_not_learn(change, expected):
    reports = [REPORT, REPORT, replace(REPORT, **change)]
    found = failed(training_findings(PROBLEM, seen(), reports))
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True))


def test_gradients_that_nobody_had_prove_nothing():
    busy = {step: [(rank, [0]) for rank in range(3)] for step in seen()}
    found = failed(training_findings(PROBLEM, busy, [REPORT]))
    assert found == ["a rank without samples contributes nothing, though its gradient is NaN"]


def test_what_is_missing_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "hvd_dbs.keras", None)
    result = CliRunner().invoke(main, ["verify"])
    assert result.exit_code == 2
    assert "verify trains, which is not possible here" in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("option", ["--steps", "--batch"])
def test_options_of_a_model_need_one(option):
    result = CliRunner().invoke(main, ["verify", option, "64"])
    assert result.exit_code == 2
    assert "--steps and --batch go with --model" in result.output


def test_an_elastic_job_is_none_to_verify(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    result = CliRunner().invoke(main, ["verify"])
    assert result.exit_code == 2
    assert "Start it without --min-np" in result.output
