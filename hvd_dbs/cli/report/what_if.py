"""What a step would take if a rank, a host, a cause or the strategy were another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.balancing.curves import ELASTICITY
from hvd_dbs.cli.progress import progress_bar
from hvd_dbs.cli.report.best_split import best_seconds, lines_of, seconds_with, spread_is_known
from hvd_dbs.cli.report.job_model import JobModel
from hvd_dbs.cli.simulate.replay import mean_seconds
from hvd_dbs.cli.wording import counted
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.replay import tables_of
from hvd_dbs.simulator.scenario import Scenario
from hvd_dbs.simulator.simulation import preset, preset_names, simulate

_ELASTICITIES = (ELASTICITY, 0.7, 0.8, 0.95, 1.0)
"""How the time of a rank may grow with its batch, where one batch size was measured. The first one
is what is assumed; the others are as likely as a part of 0 to 30 % of a step that is fixed."""

_RESAMPLES = 200

_RANGE = (5, 95)
"""Percentiles of the resampled rounds."""

_SEEDS = 3
"""Of the replay of a strategy: its range is the least and the most of them."""

_MOST_STEPS = 2000
"""Newest steps that a replay plays: longer ones take minutes, and show the same."""

_SHARES = (1, 5, 10, 25)
"""Per cent of the ranks, the slowest, that are left out."""

_MOST_SHOWN = 8
"""Ranks and hosts that get a row each, the slowest first."""

_NOTICEABLE = 0.99
"""A rank, a host or waiting for data that would make a step, or a rank's time, no shorter than this
part of it does not matter."""

_Elasticities = NDArray[np.float64] | None
"""Of the ranks, shape `[size]`; None: their curves' own."""

_Steps = Callable[[_Elasticities], NDArray[np.float64]]
"""Seconds of a step in each round, for elasticities where they are not known."""


@dataclass(frozen=True)
class Answer:
    """What a step would take.

    Attributes:
        question: What would be different.
        step_seconds: Mean of a step.
        least: End of the range that it lies in.
        most: The other end.
        num_ranks: Ranks of the job then.
    """

    question: str
    step_seconds: float
    least: float
    most: float
    num_ranks: int


def as_it_was(model: JobModel) -> Answer:
    """What a step took."""
    return _answer(model, "as it was", lambda _: model.step_seconds, (None,))


def if_fast(model: JobModel, ranks: NDArray[np.intp], question: str) -> Answer:
    """If the work of these ranks took as long as the median rank's, where it takes longer."""
    chosen = np.isin(np.arange(model.size), ranks)
    faster = np.where(chosen, np.minimum(1 / model.slowness, 1.0), 1.0)
    return _scaled(model, question, (model.work * faster + model.input_seconds) / model.seconds)


def if_calm(model: JobModel) -> Answer:
    """If nothing came and went on any rank."""
    scale = (model.work * model.calm + model.input_seconds) / model.seconds
    return _scaled(model, "no slow periods", scale)


def if_fed(model: JobModel) -> Answer:
    """If no rank waited for its data."""
    return _scaled(model, "no waiting for data", model.work / model.seconds)


def if_fast_network(model: JobModel) -> Answer:
    """If communication took half as long."""

    def steps(_: _Elasticities) -> NDArray[np.float64]:
        return model.steps(model.seconds, network=2.0)

    return _answer(model, "a network twice as fast", steps, (None,))


def if_instant(model: JobModel) -> Answer:
    """If communication took no time."""
    rest = np.array([[part.communication, part.rest] for part in model.parts])
    part = np.nan_to_num(np.where(np.isfinite(rest[:, 0]), rest[:, 0], rest[:, 1]))
    return _answer(model, "no communication", lambda _: model.step_seconds * (1 - part), (None,))


def if_split_best(
    model: JobModel, ranks: NDArray[np.intp] | None = None, calm: bool = False
) -> Answer:
    """With the split that these ranks' times allow at best.

    Args:
        model: Of the job.
        ranks: Those that take part; None: all of them.
        calm: Whether nothing comes and goes on them.
    """
    everybody = np.arange(model.size) if ranks is None else ranks
    scale = model.calm if calm else np.ones_like(model.seconds)
    return _balanced(model, "the best split", scale, everybody)


def if_left_out(model: JobModel, left_out: NDArray[np.intp], question: str) -> Answer:
    """Without these ranks; the others share their samples, as the job's strategy does."""
    others = np.setdiff1d(np.arange(model.size), left_out)
    if not model.keeps_split:
        return replace(if_split_best(model, others), question=question)

    def steps(elasticities: _Elasticities) -> NDArray[np.float64]:
        share = np.mean(model.batch_sizes, axis=0)[others]
        plan = model.global_batch_size * share / share.sum()
        ones = np.ones_like(model.seconds)
        seconds = seconds_with(model, plan, lines_of(model, elasticities, ones), ones, others)
        return model.steps(seconds, others)

    return replace(_answer(model, question, steps, _spread(model)), num_ranks=len(others))


def with_strategies(model: JobModel, names: Sequence[str]) -> Iterator[Answer]:
    """With each of these strategies, by replays of the newest steps of the job.

    Waiting for data is taken to get shorter with fewer samples, as work does; one more replay, in
    which it does not, is part of the range.
    """
    steps = min(model.replay.scenario.steps, _MOST_STEPS)
    first = model.replay.scenario.steps - steps
    scenarios = [_newest(model, first, seed) for seed in range(_SEEDS)]
    if _ranks_wait(model):
        measured = tables_of(model.curves_of_fixed_waits, model.global_batch_size)
        scenarios.append(replace(scenarios[0], measured=measured))
    with progress_bar("replays", len(names) * len(scenarios) * steps) as progress:
        for name in names:
            found = []
            for scenario in scenarios:
                conditions = Conditions.of(scenario)
                run = simulate(conditions, preset(name, conditions), progress)
                found.append(mean_seconds(run, steps // 2))
            mean = float(np.mean(found[:_SEEDS]))
            yield Answer(f'strategy="{name}"', mean, min(found), max(found), model.size)


def answers(model: JobModel) -> list[Answer]:
    """All of them: ranks and hosts that matter, causes, fewer ranks, strategies."""
    everybody, slowest = np.arange(model.size), slowest_first(model)
    found = [as_it_was(model)]
    if model.size > 1:
        # A split that follows the ranks gains by itself what has nothing to do with any of them.
        itself = math.inf if model.keeps_split else if_split_best(model).step_seconds
        noticeable = _NOTICEABLE * min(model.mean_step, itself)
        fast = [
            if_fast(model, np.array([rank]), f"rank {rank} as fast as the median")
            for rank in slowest[:_MOST_SHOWN].tolist()
        ]
        fast += [
            if_fast(model, ranks, f"host {host} as fast as the median")
            for host, ranks in _hosts(model)[:_MOST_SHOWN]
            if 1 < len(ranks) < model.size
        ]
        found += [one for one in fast if one.step_seconds < noticeable]
        found.append(if_fast(model, everybody, "all ranks as fast as the median"))
    found.append(if_calm(model))
    if model.knows_input:
        found.append(if_fed(model))
    if model.size > 1:
        found += [if_fast_network(model), if_instant(model), if_split_best(model)]
        found += _fewer(model, slowest)
    # A replay needs to know how long rounds are.
    return [*found, *with_strategies(model, preset_names() if model.knows_steps else ())]


def _fewer(model: JobModel, slowest: NDArray[np.intp]) -> Iterator[Answer]:
    counts = {max(1, math.ceil(share * model.size / 100)): share for share in _SHARES[::-1]}
    for count, share in sorted(counts.items()):
        if count < model.size:
            which = "slowest rank" if count == 1 else f"{count} slowest ranks ({share} %)"
            yield if_left_out(model, slowest[:count], f"without the {which}")
    hosts = _hosts(model)
    for host, ranks in hosts[:_MOST_SHOWN] if len(hosts) > 1 else ():
        yield if_left_out(model, ranks, f"without host {host} ({counted(len(ranks), 'rank')})")


def _hosts(model: JobModel) -> list[tuple[str, NDArray[np.intp]]]:
    """Hosts and their ranks, the one with the slowest rank first."""
    hosts = np.array(model.hosts)
    order = dict.fromkeys(hosts[slowest_first(model)].tolist())
    return [(host, np.flatnonzero(hosts == host)) for host in order]


def slowest_first(model: JobModel) -> NDArray[np.intp]:
    """The ranks, the slowest for the same samples first, shape `[size]`."""
    waits = model.seconds / model.work
    slowness = np.average(model.slowness * model.paces * waits, axis=0, weights=model.num_steps)
    return np.argsort(-slowness, kind="stable")


def _scaled(model: JobModel, question: str, scale: NDArray[np.float64]) -> Answer:
    """If the ranks' times were multiplied by these, and the split were the strategy's."""
    if model.keeps_split:
        return _answer(model, question, lambda _: model.steps(model.seconds * scale), (None,))
    return _balanced(model, question, scale, np.arange(model.size))


def _balanced(
    model: JobModel, question: str, scale: NDArray[np.float64], ranks: NDArray[np.intp]
) -> Answer:
    def steps(elasticities: _Elasticities) -> NDArray[np.float64]:
        return model.steps(best_seconds(model, elasticities, scale, ranks), ranks)

    return replace(_answer(model, question, steps, _spread(model)), num_ranks=len(ranks))


def _spread(model: JobModel) -> Sequence[_Elasticities]:
    """Elasticities that ranks may have; what is assumed comes first."""
    if spread_is_known(model):
        return (None,)
    grown = [np.full(model.size, elasticity) for elasticity in _ELASTICITIES]
    return [*grown, *(one * model.work_part for one in grown if _ranks_wait(model))]


def _ranks_wait(model: JobModel) -> bool:
    """Whether it matters how waiting for data grows with the batch, and is not known."""
    parts = zip(model.work_part, model.curves, strict=True)
    return any(part < _NOTICEABLE and not curve.shows_growth for part, curve in parts)


def _answer(
    model: JobModel, question: str, steps: _Steps, elasticities: Sequence[_Elasticities]
) -> Answer:
    """The mean over the rounds, and its range over resampled rounds and elasticities."""
    rows = np.stack([steps(one) for one in elasticities])
    rounds = len(model.num_steps)
    random = np.random.default_rng(0)
    means = []
    for chosen in random.integers(0, rounds, (_RESAMPLES, rounds)):
        row = rows[random.integers(0, len(rows))]
        means.append(np.average(row[chosen], weights=model.num_steps[chosen]))
    least, most = np.percentile(means, _RANGE)
    mean = float(np.average(rows[0], weights=model.num_steps))
    return Answer(question, mean, min(float(least), mean), max(float(most), mean), model.size)


def _newest(model: JobModel, first: int, seed: int) -> Scenario:
    """The scenario of a job's steps from this one on."""
    scenario, paces = model.replay.scenario, model.replay.paces.newest(first)
    return replace(scenario, steps=scenario.steps - first, disturbances=(paces,), seed=seed)
