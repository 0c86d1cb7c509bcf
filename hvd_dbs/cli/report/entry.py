"""`hvd-dbs report`: what holds a job back, who is slow and who waits, from its journal."""

from __future__ import annotations

from pathlib import Path

import click

from hvd_dbs.cli.input_error import InputError, input_errors
from hvd_dbs.cli.report.comparison import Side, comparison
from hvd_dbs.cli.report.files import write_files
from hvd_dbs.cli.report.text import text_of
from hvd_dbs.cli.report.verdict import Verdict
from hvd_dbs.cli.report.what_if_text import what_if_text
from hvd_dbs.cli.standard_output import say
from hvd_dbs.job.journal import JournalPart, read_journal

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("report")
@click.argument("journal", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument(
    "other", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False
)
@click.option("--part", type=click.IntRange(min=1), help="Part of the journal.  [default: last]")
@click.option("--all", "with_all", is_flag=True, help="All ranks and all changes of plan.")
@click.option("--what-if", is_flag=True, help="What other ranks, plans and strategies would take.")
@click.option("--compare", is_flag=True, help="Compare the last parts of JOURNAL and OTHER.")
@click.option("--page", type=_FILE, help="Write an HTML page that needs no network.")
@click.option("--trace", type=_FILE, help="Write a trace for Perfetto or chrome://tracing.")
@click.option("--picture", type=_FILE, help="Draw it (.png, .svg, .pdf).")
def command(
    journal: Path,
    other: Path | None,
    part: int | None,
    with_all: bool,
    what_if: bool,
    compare: bool,
    **files: Path | None,
) -> None:
    """Shows from a job's JOURNAL what holds it back, who is slow, who waits, and what was decided.

    JOURNAL is the file that the job was told by hvd.Balancer(..., journal=FILE). It has a part
    for each start of the job, and for each change of its ranks or of its global batch size. It
    may be read while the job runs. With --compare, OTHER is the journal of a second run.

    Exit codes: 0; 2 for wrong input; 1 if standard output cannot be written.
    """
    with input_errors():
        if compare != (other is not None):
            given = "one journal" if other is None else "two journals without --compare"
            raise InputError(f"report was given {given}. Give hvd-dbs report --compare A B.")
        if other is not None:
            if part or with_all or what_if or any(files.values()):
                raise InputError(
                    "--compare prints one text on the last parts of both journals. Leave out the "
                    "other options, or give hvd-dbs report JOURNAL for each of them."
                )
            same = journal.name == other.name
            names = (str(journal), str(other)) if same else (journal.name, other.name)
            say(comparison(_side(journal, names[0]), _side(other, names[1])))
            return
        parts, num_damaged = read_journal(journal)
        if part is not None and part > len(parts):
            raise InputError(f"--part {part}: {journal} has parts 1 to {len(parts)}.")
        number = part or len(parts)
        chosen = parts[number - 1]
        verdict = _verdict(chosen)
        write_files(chosen, verdict, journal.name, **files)
        text = text_of(chosen, verdict, with_all)
        if what_if:
            if isinstance(verdict, str):
                raise InputError(f"--what-if: {verdict}")
            text += f"\n\n{what_if_text(verdict.model)}"
    say(f"{journal.name}, part {number} of {len(parts)}: {text}")
    if num_damaged:
        lines = "line was" if num_damaged == 1 else "lines were"
        click.echo(f"{num_damaged} damaged {lines} left out.", err=True)


def _verdict(part: JournalPart) -> Verdict | str:
    """The verdict, or why there is none."""
    try:
        return Verdict.of(part)
    except ValueError as error:
        return str(error)


def _side(journal: Path, name: str) -> Side:
    verdict = _verdict(read_journal(journal)[0][-1])
    if isinstance(verdict, str):
        raise InputError(f"--compare {journal}: {verdict}")
    return Side(name, verdict)
