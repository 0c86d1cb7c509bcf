"""Trains a user's model on all ranks and in one process, compares, and looks for causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from hvd_dbs.cli.input_error import InputError
from hvd_dbs.cli.verify.causes import causes
from hvd_dbs.cli.verify.comparing import compare, of_rank_0
from hvd_dbs.cli.verify.findings import Finding
from hvd_dbs.cli.verify.model_findings import (
    Comparison,
    can_compare,
    failed_metrics,
    model_findings,
    weights_finding,
)
from hvd_dbs.cli.verify.model_problem import ModelProblem
from hvd_dbs.cli.verify.model_training import (
    ModelTraining,
    Weights,
    train_alone,
    train_balanced,
    unit_roundoff,
)
from hvd_dbs.cli.verify.probe import first_weights
from hvd_dbs.cli.verify.random_layers import seed_states
from hvd_dbs.cli.verify.step_check import check_step, class_names, facts_of
from hvd_dbs.cli.verify.user_model import (
    UserModel,
    build,
    find_function,
    optimizers_of,
    samples_of,
    take,
)
from hvd_dbs.cli.wording import counted
from hvd_dbs.comm.agreement import allgather_json, allgather_text
from hvd_dbs.comm.collective import Collective
from hvd_dbs.rank_names import name_ranks

_T = TypeVar("_T")

_SAMPLES_A_RANK = 16
_LEAST_SAMPLES = 32


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
        name: `package.module:function`.
        seed: Of weights, order and plans.
        steps: Steps to train.
        global_batch_size: Samples of all ranks in a step; None: by the number of ranks.
    """

    name: str
    seed: int
    steps: int
    global_batch_size: int | None


@dataclass(frozen=True)
class _Subject:
    """What is verified; the same on all ranks."""

    function: Callable[[], Any]
    user: UserModel
    problem: ModelProblem
    samples: Any
    start: Weights
    names: Sequence[str]


def verify_model(collective: Collective, request: Request) -> Iterator[Finding | str]:
    """Findings, notes and causes, each as soon as it is known; the same on all ranks. Collective.

    Raises:
        InputError: On all ranks, if one of them cannot train the model in plain Keras.
    """
    subject = together(collective, request.name, lambda: _subject(collective, request))
    start = _common_start(collective, request.name, subject.start)
    yield _heading(request.name, subject)
    yield from _notes(subject.user)
    function, problem, samples = subject.function, subject.problem, subject.samples
    orders = [2 * collective.rank, 2 * collective.rank + 1]
    alone = together(
        collective,
        request.name,
        lambda: train_alone(function, problem, samples, orders, start),
    )
    # An error in here ends this rank, and with it the job: it is one of balanced training.
    balanced = train_balanced(function, problem, samples, start)
    roundoff = unit_roundoff(subject.user.model)
    comparison = compare(collective, (start, subject.names), alone, balanced, roundoff)
    yield from model_findings(comparison)
    yield from _causes(collective, subject, start, comparison, alone)


def together(collective: Collective, name: str, do: Callable[[], _T]) -> _T:
    """What `do` returns, unless it fails on any rank: then all ranks fail, with one sentence.

    Raises:
        InputError: On all ranks.
    """
    result: list[_T] = []
    text = ""
    try:
        result.append(do())
    except Exception as error:  # Whatever it is, the other ranks must not wait for this one.
        is_ours = isinstance(error, ValueError | TypeError)
        kind = "" if is_ours else f"{type(error).__name__}: "
        text = f"{kind}{' '.join(str(error).split())}" or type(error).__name__
    texts = allgather_text(collective, text)
    failed = [rank for rank, one in enumerate(texts) if one]
    if failed:
        on = "" if len(failed) == len(texts) else f" on {name_ranks(failed)}"
        raise InputError(f"{name} cannot be verified{on}: {texts[failed[0]]}")
    return result[0]


def _subject(collective: Collective, request: Request) -> _Subject:
    """Calls the user's function and reads samples.

    Raises:
        ValueError: If that cannot be done.
    """
    size, seed = collective.size, request.seed
    batch = request.global_batch_size or max(_LEAST_SAMPLES, _SAMPLES_A_RANK * size)
    function = find_function(request.name)
    user = build(function, seed)
    wanted = ModelProblem.of(size, seed, batch, request.steps, available=2**62).num_samples
    samples, count = samples_of(user.data, batch, wanted, seed)
    problem = ModelProblem.of(size, seed, batch, request.steps, available=count)
    return _Subject(function, user, problem, samples, *first_weights(user, samples))


def _common_start(collective: Collective, name: str, start: Weights) -> Weights:
    """Rank 0's weights. Collective.

    Raises:
        InputError: On all ranks, if their models have other weights.
    """
    rows = allgather_json(collective, [list(one.shape) for one in start])
    others = [rank for rank, row in enumerate(rows) if row != rows[0]]
    if others:
        raise InputError(
            f"{name} returns a model with other weights on {name_ranks(others)} than on rank 0. "
            f"Return the same model on every rank."
        )
    return of_rank_0(collective, start)


def _heading(name: str, subject: _Subject) -> str:
    problem, model = subject.problem, subject.user.model
    optimizers = ", ".join(class_names(optimizers_of(model).values()))
    return (
        f"{name}: {counted(problem.epochs * problem.num_steps, 'step')} of "
        f"{problem.global_batch_size} samples in {counted(problem.epochs, 'epoch')}, "
        f"{counted(len(subject.start), 'weight')}, {optimizers}"
    )


def _notes(user: UserModel) -> list[str]:
    off = user.turned_off
    shown = ", ".join(off[:4]) + (f" and {len(off) - 4} more" if len(off) > 4 else "")
    return [f"{'note':<7} off for the comparison: {shown}"] if off else []


def _causes(
    collective: Collective,
    subject: _Subject,
    start: Weights,
    comparison: Comparison,
    alone: Sequence[ModelTraining],
) -> list[str]:
    """Why trainings differ, if they do. Collective."""
    is_compared = can_compare(comparison).is_ok
    metrics = failed_metrics(comparison) if is_compared else []
    differ = is_compared and not weights_finding(comparison).is_ok
    if is_compared and not (differ or metrics):
        return []
    step = None
    if differ and collective.size > 1:
        rows = np.arange(subject.problem.global_batch_size)
        batch = take(subject.samples, rows)
        step = check_step(
            collective, subject.function, subject.user, subject.problem.seed, batch, start
        )
    # What one process has found, of rank 0: causes are the same on all ranks.
    facts = allgather_json(collective, [alone[0].drawn, alone[0].batch_means])[0]
    means = [name for name in facts[1] if name in metrics]
    layers = list(seed_states(subject.user.model))
    drawn = [layers[place] for place in facts[0] if place < len(layers)]
    model = facts_of(subject.user, drawn, means)
    return [f"{'cause':<7} {text}" for text in causes(model, step, differ)]
