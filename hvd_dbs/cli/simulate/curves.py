"""The suite over a file of measured curves: all combinations of its devices."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from hvd_dbs.cli.progress import progress_bar
from hvd_dbs.cli.simulate.request import Request
from hvd_dbs.cli.tables import table
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.curve_cases import (
    STEPS_A_DECISION,
    CurveFigures,
    curve_cases,
    curve_figures,
    spread_of,
)
from hvd_dbs.simulator.simulation import preset_names, simulate


def run(request: Request, curves: Path) -> str:
    """Runs all cases with each strategy; returns the table."""
    names = request.names or preset_names()
    if request.every is None:
        request = replace(request, every=STEPS_A_DECISION)
    cases = list(curve_cases(curves))
    if not cases:
        raise ValueError(f"--curves {curves}: fewer than two devices that cover B = 64.")
    figures: dict[str, list[CurveFigures]] = {name: [] for name in names}
    with progress_bar("curves", len(cases) * len(names)) as progress:
        for case in cases:
            seed = case.seed + len(cases) * (request.seed or 0)
            conditions = Conditions.of(replace(case, seed=seed))
            for name in names:
                run = simulate(conditions, request.strategy(name, conditions))
                figures[name].append(curve_figures(run))
                progress(1)
    request.save("curves", [asdict(entry) for name in names for entry in figures[name]])
    header = ("strategy", "median", "p90", "p95", "most", "within 3 %", "still moving")
    rows = []
    for name in names:
        entries = figures[name]
        within = sum(entry.over_optimum <= 0.03 for entry in entries) / len(entries)
        moving = sum(entry.changes_in_last_third > 2 for entry in entries)
        spread = [f"{100 * value:.2f} %" for value in spread_of(entries)]
        rows.append((name, *spread, f"{100 * within:.1f} %", f"{moving}"))
    title = (
        f"{curves.name}: {len(cases)} cases, {cases[0].steps} steps, "
        f"decisions every {request.every} steps; step time of the last plan over the optimum"
    )
    note = '"still moving": cases with more than two plan changes in the last third of the run'
    return "\n".join([title, "", table(header, rows), "", note])
