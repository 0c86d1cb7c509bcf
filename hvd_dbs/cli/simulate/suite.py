"""The suite: scenario classes by numbers of ranks by presets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from statistics import fmean, stdev
from typing import Any

from hvd_dbs.cli.progress import progress_bar
from hvd_dbs.cli.simulate.request import Request
from hvd_dbs.cli.simulate.workers import workers
from hvd_dbs.cli.tables import table
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.figures import figures_of
from hvd_dbs.simulator.result_file import run_data
from hvd_dbs.simulator.scenario_file import with_seed
from hvd_dbs.simulator.simulation import preset_names, simulate
from hvd_dbs.simulator.suite import SCENARIO_CLASSES, SIZES

Case = tuple[str, int]
"""Scenario class and number of ranks."""

SEED = 1
"""The first seed, where no other is asked for."""


def run(request: Request) -> str:
    """Runs the suite; returns the table of throughput over oracle."""
    sizes = request.sizes or SIZES
    classes = request.classes or tuple(SCENARIO_CLASSES)
    for name in classes:
        if name not in SCENARIO_CLASSES:
            known = ", ".join(SCENARIO_CLASSES)
            given = name or '""'
            raise ValueError(f"--classes {given}; expected some of {known}.")
    names = request.names or preset_names()
    cases = list(itertools.product(classes, sizes))
    results: dict[Case, list[dict[str, Any]]] = {}
    with progress_bar("suite", len(cases) * request.num_seeds * len(names)) as progress:
        for case, entries in _run_all(request, cases, names, progress):
            results[case] = entries
    ordered = [{"class": case[0], **entry} for case in cases for entry in results[case]]
    request.save("suite", ordered)
    return "\n".join(_lines(cases, names, results))


def _run_all(
    request: Request, cases: Sequence[Case], names: Sequence[str], progress: Callable[[int], None]
) -> Iterator[tuple[Case, list[dict[str, Any]]]]:
    if request.jobs == 1:
        for case in cases:
            yield case, _run_case(request, case, names, progress)
        return
    with workers(request.jobs) as pool:
        largest_first = sorted(cases, key=lambda case: -case[1])
        pending = {pool.submit(_run_case, request, case, names): case for case in largest_first}
        for done in as_completed(pending):
            progress(request.num_seeds * len(names))
            yield pending[done], done.result()


def _run_case(
    request: Request,
    case: Case,
    names: Sequence[str],
    progress: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """All presets on one scenario with each seed, as JSON data."""
    scenario_class, size = case
    first = SEED if request.seed is None else request.seed
    entries = []
    for seed in range(first, first + request.num_seeds):
        conditions = Conditions.of(with_seed(SCENARIO_CLASSES[scenario_class](size), seed))
        for name in names:
            run = simulate(conditions, request.strategy(name, conditions))
            entries.append(run_data(run, figures_of(run), with_steps=False))
            progress(1)
    return entries


def _lines(
    cases: Sequence[Case], names: Sequence[str], results: dict[Case, list[dict[str, Any]]]
) -> Iterator[str]:
    rows, beaten = [], []
    for case in cases:
        values = _means(results[case], len(names))
        marks = ["*" if value == max(values) else " " for value in values]
        cells = [f"{value:.3f}{mark}" for value, mark in zip(values, marks, strict=True)]
        rows.append((case[0], str(case[1]), *cells))
        if "adaptive" in names:
            own = values[names.index("adaptive")]
            best = max(values)
            if own < best:
                winner = names[values.index(best)]
                difference = _difference(results[case], names, winner, "adaptive")
                beaten.append(
                    f"{case[0]} at {case[1]} ranks: {own:.3f}, {winner} {best:.3f}{difference}"
                )
    num_runs = len(results[cases[0]]) // len(names)
    mean = f"; mean of {num_runs} seeds" if num_runs > 1 else ""
    yield f"Throughput over the oracle's (1 is the best there is; * the best of the row{mean})"
    yield ""
    yield table(("class", "ranks", *names), rows)
    errors = [entry["figures"]["largest_sum_error"] for case in cases for entry in results[case]]
    yield ""
    yield f"{len(errors)} runs; largest |sum(b) - B|: {max(errors)}"
    if "adaptive" in names and len(names) > 1:
        yield f"adaptive is not the best in {len(beaten)} of {len(cases)} cases"
        yield from (f"  {line}" for line in beaten)


def _means(entries: Sequence[dict[str, Any]], num_names: int) -> list[float]:
    """Mean throughput over oracle of each preset, to the digits that are shown."""
    ratios = _ratios(entries)
    return [round(fmean(ratios[index::num_names]), 3) for index in range(num_names)]


def _difference(
    entries: Sequence[dict[str, Any]], names: Sequence[str], one: str, other: str
) -> str:
    """By how much a preset is ahead of another in the same seeds; nothing of a single seed."""
    ratios, num_names = _ratios(entries), len(names)
    pairs = zip(*(ratios[names.index(name) :: num_names] for name in (one, other)), strict=True)
    ahead = [first - second for first, second in pairs]
    if len(ahead) == 1:
        return ""
    error = stdev(ahead) / len(ahead) ** 0.5
    return f", ahead by {fmean(ahead):.4f} (standard error {error:.4f})"


def _ratios(entries: Sequence[dict[str, Any]]) -> list[float]:
    return [float(entry["figures"]["throughput_over_oracle"]) for entry in entries]
