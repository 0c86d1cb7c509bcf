"""What holds a job back: by what a step would be shorter without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.cli.report.job_model import JobModel

Kind: TypeAlias = Literal["ranks", "slow periods", "input", "communication", "unsteady", "none"]

_LEAST: dict[Kind, float] = {
    "ranks": 0.1,
    "slow periods": 0.1,
    "input": 0.1,
    "communication": 0.25,
    "unsteady": 0.25,
}
"""Part of a step from which on it holds a job back: there is always some communication."""

_MOSTLY = 0.8
"""The fewest ranks that together make this part of it are named."""

_MOST_NAMED = 4
_MOST_TRIED = 32

_RESAMPLES = 500

_Shortened: TypeAlias = Callable[[NDArray[np.bool_]], NDArray[np.float64]]
"""Seconds that a step is shorter by in each round, without the cause on these ranks."""


@dataclass(frozen=True)
class Cause:
    """What a step would be shorter by.

    Attributes:
        kind: Of the cause; "none": nothing holds the job back.
        ranks: Those that it is on, the slowest first; all: on no rank more than on others.
        host: The host that has all of these ranks and no other; empty: there is none.
        saved_seconds: By what a step would be shorter, shape `[rounds]`.
    """

    kind: Kind
    ranks: tuple[int, ...]
    host: str
    saved_seconds: NDArray[np.float64]


@dataclass(frozen=True)
class Causes:
    """The causes of a job.

    Attributes:
        main: The largest that is large enough, or "none".
        saved: Part of a step that is its, 0 to 1.
        agreement: Part of resampled rounds in which the main one is of the same kind.
        all: All of them, the largest first.
    """

    main: Cause
    saved: float
    agreement: float
    all: tuple[Cause, ...]


def causes_of(model: JobModel) -> Causes:
    """Compares the causes, with the plans that were in force."""
    found = [
        _on_ranks(model, "ranks", lambda ranks: _without(model, ranks, 1 / model.slowness)),
        _on_ranks(model, "slow periods", lambda ranks: _without(model, ranks, model.calm)),
        _on_ranks(model, "input", lambda ranks: _without_input(model, ranks)),
        *_of_all(model),
    ]
    nothing = Cause("none", (), "", np.zeros(len(model.num_steps)))
    found.sort(key=lambda cause: -_share(model, cause, model.num_steps))
    main = _largest(model, found, model.num_steps) or nothing
    random = np.random.default_rng(0)
    rounds = len(model.num_steps)
    agreed = 0
    for _ in range(_RESAMPLES):
        weights = model.num_steps * np.bincount(
            random.integers(0, rounds, rounds), minlength=rounds
        )
        agreed += (_largest(model, found, weights) or nothing).kind == main.kind
    return Causes(main, _share(model, main, model.num_steps), agreed / _RESAMPLES, tuple(found))


def _largest(
    model: JobModel, causes: Sequence[Cause], weights: NDArray[np.float64]
) -> Cause | None:
    shares = [(_share(model, cause, weights), cause) for cause in causes]
    enough = [pair for pair in shares if pair[0] >= _LEAST[pair[1].kind]]
    return max(enough, key=lambda pair: pair[0])[1] if enough else None


def _share(model: JobModel, cause: Cause, weights: NDArray[np.float64]) -> float:
    """Part of a step that is a cause's, in rounds that count for so many steps."""
    return float((weights * cause.saved_seconds).sum() / (weights * model.step_seconds).sum())


def _without(
    model: JobModel, ranks: NDArray[np.bool_], scale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """If the work of these ranks took `scale` of what it took, where that is less."""
    work = model.work * np.where(ranks, np.minimum(scale, 1.0), 1.0)
    return _longest(model.seconds) - _longest(work + model.input_seconds)


def _without_input(model: JobModel, ranks: NDArray[np.bool_]) -> NDArray[np.float64]:
    return _longest(model.seconds) - _longest(np.where(ranks, model.work, model.seconds))


def _longest(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(seconds.max(axis=1))


def _of_all(model: JobModel) -> list[Cause]:
    """What is on no rank more than on others."""
    everybody = tuple(range(model.size))
    rest = np.array([part.rest for part in model.parts])
    known = np.array([part.communication for part in model.parts])
    communication = np.nan_to_num(np.where(np.isfinite(known), known, rest))
    unsteady = np.nan_to_num(np.array([part.unsteady for part in model.parts]))
    if model.size == 1:
        return []
    seconds = model.step_seconds
    return [
        Cause("communication", everybody, "", communication * seconds),
        Cause("unsteady", everybody, "", unsteady * seconds),
    ]


def _on_ranks(model: JobModel, kind: Kind, shortened: _Shortened) -> Cause:
    """A cause with the fewest ranks that it is mostly on: one, those of a host, or some."""
    saved = shortened(np.ones(model.size, dtype=bool))
    enough = _MOSTLY * float((model.num_steps * saved).sum())
    if enough <= 0:
        return Cause(kind, tuple(range(model.size)), "", saved)

    def of(ranks: Sequence[int]) -> float:
        return float((model.num_steps * shortened(_mask(model, ranks))).sum())

    named: list[int] = []
    # Only a rank that is the last one in some round can make a step shorter.
    left = model.seconds.copy()
    for _ in range(min(_MOST_NAMED, model.size)):
        last = np.unique(left.argmax(axis=1))[:_MOST_TRIED].tolist()
        named.append(max(last, key=lambda rank: of([*named, rank])))
        left[:, named[-1]] = -np.inf
        if of(named) >= enough:
            break
    else:
        named = []
    for host in dict.fromkeys(model.hosts) if len(named) != 1 else ():
        there = [rank for rank in range(model.size) if model.hosts[rank] == host]
        if 1 < len(there) < model.size and of(there) >= enough:
            return Cause(kind, tuple(there), host, saved)
    return Cause(kind, tuple(named or range(model.size)), "", saved)


def _mask(model: JobModel, ranks: Sequence[int]) -> NDArray[np.bool_]:
    mask = np.zeros(model.size, dtype=bool)
    mask[list(ranks)] = True
    return mask
