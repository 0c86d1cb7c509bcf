"""Forecasts of the step in which a plan holds, under processor contention."""

from __future__ import annotations

from dataclasses import asdict

from hvd_dbs.cli.progress import progress_bar
from hvd_dbs.cli.simulate.request import Request
from hvd_dbs.cli.tables import table
from hvd_dbs.simulator.prediction import PREDICTION_CASES, PredictionError, prediction_errors
from hvd_dbs.simulator.scenario_file import with_seed


def run(request: Request) -> str:
    """Lets all predictors foresee all cases; returns the table."""
    errors: list[PredictionError] = []
    with progress_bar("prediction", len(PREDICTION_CASES)) as progress:
        for make in PREDICTION_CASES.values():
            errors += prediction_errors(with_seed(make(), request.seed))
            progress(1)
    request.save("prediction", [asdict(entry) for entry in errors])
    names = list(dict.fromkeys(entry.predictor for entry in errors))
    by_case: dict[str, dict[str, PredictionError]] = {}
    for entry in errors:
        by_case.setdefault(entry.scenario, {})[entry.predictor] = entry
    rows = []
    for case, entries in by_case.items():
        values = [entries[name].root_mean_square for name in names]
        cells = [f"{value:.3f}{'*' if value == min(values) else ' '}" for value in values]
        changes = [entries[name].at_changes for name in names]
        cells += ["-" if value is None else f"{value:.3f} " for value in changes]
        rows.append((case, *cells))
    header = ("contention", *names, *(f"{name} @change" for name in names))
    title = (
        "Error of the speed foreseen for the first step of the plan that is decided then, root "
        "mean square,\nin parts of the rank's undisturbed speed "
        "(* the least; @change: a slowdown has begun or ended meanwhile)"
    )
    return "\n".join([title, "", table(header, rows)])
