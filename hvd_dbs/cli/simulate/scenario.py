"""One scenario, one or more strategies."""

from __future__ import annotations

from hvd_dbs.cli.progress import progress_bar
from hvd_dbs.cli.simulate.request import Request
from hvd_dbs.cli.tables import table
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.figures import Figures, Recovery, figures_of
from hvd_dbs.simulator.result_file import run_data
from hvd_dbs.simulator.scenario import Scenario
from hvd_dbs.simulator.scenario_file import read_scenario, scenario_of_curves, with_seed
from hvd_dbs.simulator.simulation import preset_names, simulate

HEADER = (
    "strategy",
    "over oracle",
    "second half",
    "samples/s",
    "95 % from start",
    "95 % again",
    "plan changes",
    "largest regret",
    "sum error",
)


def run(request: Request) -> str:
    """Runs the scenario with each strategy; returns the table."""
    scenario = _scenario(request)
    names = request.names or (scenario.strategy,)
    for name in names:
        if name not in preset_names():
            known = ", ".join(preset_names())
            raise ValueError(f"{request.scenario}: strategy = {name!r}; expected one of {known}.")
    conditions = Conditions.of(scenario)
    with progress_bar(scenario.name, len(names) * scenario.steps) as progress:
        runs = [
            simulate(conditions, request.strategy(name, conditions), progress) for name in names
        ]
    figures = [figures_of(run) for run in runs]
    request.save(
        "runs", [run_data(*pair, with_steps=True) for pair in zip(runs, figures, strict=True)]
    )
    notes = [f"{run.strategy} warned: {text}" for run in runs for text in run.warnings[:3]]
    if request.picture_path is not None:
        from hvd_dbs.simulator import picture

        if len(runs) > picture.MOST_RUNS:
            shown = ", ".join(names[: picture.MOST_RUNS])
            notes.append(f"{request.picture_path} shows {shown}; choose others with --strategy.")

        try:
            picture.draw(runs[: picture.MOST_RUNS], request.picture_path)
        except (OSError, RuntimeError) as error:
            raise ValueError(f"--picture {request.picture_path}: {error}") from error
    title = (
        f"{scenario.name}: {scenario.size} ranks, B = {scenario.global_batch_size}, "
        f"{scenario.steps} steps, seed {scenario.seed}"
    )
    rows = [_row(name, entry) for name, entry in zip(names, figures, strict=True)]
    return "\n".join([title, "", table(HEADER, rows), *notes])


def _scenario(request: Request) -> Scenario:
    if request.scenario is None:
        if request.curves is None:
            raise ValueError("neither a scenario nor curves; give one of them.")
        scenario = scenario_of_curves(request.curves, request.global_batch_size)
    else:
        if request.global_batch_size is not None:
            raise ValueError(
                "--global-batch-size goes with --curves alone; a scenario file has its own."
            )
        scenario = read_scenario(request.scenario, request.curves)
    return with_seed(scenario, request.seed)


def _row(name: str, figures: Figures) -> tuple[str, ...]:
    again = "-"
    if figures.recoveries:
        there = sum(entry.steps is not None for entry in figures.recoveries)
        median = figures.median_recovery_steps
        steps = "never" if median is None else f"{median:.0f} steps"
        again = f"{steps} ({there}/{len(figures.recoveries)})"
    return (
        name,
        f"{figures.throughput_over_oracle:.3f}",
        f"{figures.second_half_over_oracle:.3f}",
        f"{figures.samples_per_second:.0f}",
        _reached(figures.cold_start),
        again,
        f"{figures.num_plan_changes}",
        f"{1000 * figures.largest_regret_seconds:.1f} ms @{figures.largest_regret_step}",
        f"{figures.largest_sum_error}",
    )


def _reached(recovery: Recovery) -> str:
    if recovery.steps is None or recovery.seconds is None:
        return "never"
    return f"{recovery.steps} steps, {recovery.seconds:.1f} s"
