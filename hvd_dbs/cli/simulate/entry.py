"""`hvd-dbs simulate`: strategies on modelled clusters, against the best plan there is."""

from __future__ import annotations

from pathlib import Path

import click

from hvd_dbs.cli.input_error import InputError, input_errors
from hvd_dbs.cli.simulate.curves import run as run_curves
from hvd_dbs.cli.simulate.prediction import run as run_prediction
from hvd_dbs.cli.simulate.replay import run as run_replay
from hvd_dbs.cli.simulate.request import Request
from hvd_dbs.cli.simulate.scenario import run as run_scenario
from hvd_dbs.cli.simulate.suite import run as run_suite
from hvd_dbs.cli.standard_output import say

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_NEW_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("simulate")
@click.argument("scenario", type=_FILE, required=False)
@click.option("--suite", is_flag=True, help="All scenario classes and presets, in one table.")
@click.option("--prediction", is_flag=True, help="Forecasts of a plan's first step.")
@click.option("--replay", type=_FILE, help="Journal of a job, to be run with other strategies.")
@click.option("--curves", type=_FILE, help="Measured curves: device,batch_size,milliseconds.")
@click.option(
    "--strategy", "names", multiple=True, help='Preset; may be repeated; "all": each of them.'
)
@click.option("--every", help='Steps a decision, "epoch" or "automatic"; else the preset\'s own.')
@click.option("--seed", type=click.IntRange(min=0), help="Instead of the scenario's own.")
@click.option(
    "--global-batch-size", type=click.IntRange(min=1), help="For --curves without a scenario."
)
@click.option("--ranks", help="Sizes for --suite, such as 4,64,1024.  [default: 4,64,1024,16384]")
@click.option("--classes", help="Scenario classes for --suite, such as drift,pauses.")
@click.option(
    "--seeds",
    "num_seeds",
    type=click.IntRange(min=1),
    default=1,
    help="Seeds of each case of --suite, whose mean is shown.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes for --suite.")
@click.option("--json", "json_path", type=_NEW_FILE, help="Write the figures to this file.")
@click.option("--picture", "picture_path", type=_NEW_FILE, help="Draw the runs (.png, .svg, .pdf).")
def command(suite: bool, prediction: bool, **given: object) -> None:
    """Runs strategies on a modelled cluster and compares them with the best plan there is.

    SCENARIO is a TOML file (docs/simulator.md). Without one, --curves FILE makes a cluster of
    the file's devices, and --suite runs the built-in scenarios; --suite --curves FILE runs
    every combination of the file's devices. --replay JOURNAL makes a cluster of what a job's
    journal says (docs/journal.md) and tells what other strategies would have made of it.

    Exit codes: 0; 2 for wrong input; 1 if standard output cannot be written.
    """
    with input_errors():
        request = Request.of(**given)
        given_kinds = (request.scenario is not None) + (request.replay is not None)
        if suite + prediction + given_kinds > 1:
            raise InputError(
                "SCENARIO, --suite, --prediction and --replay exclude each other. Give one."
            )
        if request.picture_path is not None and (suite or prediction or request.replay):
            raise InputError(
                "--picture draws the runs of a scenario. "
                "Leave out --suite, --prediction and --replay."
            )
        if request.replay is not None and (request.curves or request.global_batch_size):
            raise InputError(
                "--replay takes curves and global batch size from the journal. Leave out --curves "
                "and --global-batch-size."
            )
        if prediction and (request.names or request.every or request.curves):
            raise InputError("--prediction takes --seed and --json alone. Leave out the others.")
        if request.global_batch_size and (suite or prediction):
            raise InputError("--global-batch-size goes with --curves alone. Leave it out.")
        several = request.sizes or request.classes or request.num_seeds > 1 or request.jobs > 1
        if several and not (suite and request.curves is None):
            raise InputError(
                "--ranks, --classes, --seeds and --jobs are for the built-in scenarios of --suite. "
                "Leave them out, or give --suite without --curves."
            )
        if suite and request.curves is not None:
            text = run_curves(request, request.curves)
        elif suite:
            text = run_suite(request)
        elif prediction:
            text = run_prediction(request)
        elif request.replay is not None:
            text = run_replay(request, request.replay)
        elif request.scenario is not None or request.curves is not None:
            text = run_scenario(request)
        else:
            raise InputError(
                "nothing to simulate. Give a SCENARIO, --curves FILE, --replay JOURNAL or --suite."
            )
    say(text)
