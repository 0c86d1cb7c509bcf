"""`hvd-dbs report`: who is slow and who waits, from the journal of a job."""

from __future__ import annotations

from pathlib import Path

import click

from hvd_dbs.cli.input_error import InputError, input_errors
from hvd_dbs.cli.report.picture import draw
from hvd_dbs.cli.report.text import text_of
from hvd_dbs.cli.standard_output import say
from hvd_dbs.job.journal import read_journal


@click.command("report")
@click.argument("journal", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--part", type=click.IntRange(min=1), help="Part of the journal.  [default: last]")
@click.option("--all", "with_all", is_flag=True, help="All ranks and all changes of plan.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw it (.png, .svg, .pdf).",
)
def command(journal: Path, part: int | None, with_all: bool, picture: Path | None) -> None:
    """Shows from a job's JOURNAL who is slow, who waits, and what was decided.

    JOURNAL is the file that the job was told by hvd.Balancer(..., journal=FILE). It has a part
    for each start of the job, and for each change of its ranks or of its global batch size. It
    may be read while the job runs.

    Exit codes: 0; 2 for wrong input; 1 if standard output cannot be written.
    """
    with input_errors():
        parts, num_damaged = read_journal(journal)
        if part is not None and part > len(parts):
            raise InputError(f"--part {part}: {journal} has parts 1 to {len(parts)}.")
        number = part or len(parts)
        chosen = parts[number - 1]
        if picture is not None:
            try:
                draw(chosen, picture)
            except (OSError, RuntimeError) as error:
                raise InputError(f"--picture {picture}: {error}") from error
    say(f"{journal.name}, part {number} of {len(parts)}: {text_of(chosen, with_all)}")
    if num_damaged:
        lines = "line was" if num_damaged == 1 else "lines were"
        click.echo(f"{num_damaged} damaged {lines} left out.", err=True)
