"""The files that a report writes beside its text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hvd_dbs.cli.input_error import InputError
from hvd_dbs.cli.report.page import write_page
from hvd_dbs.cli.report.picture import draw
from hvd_dbs.cli.report.trace import write_trace
from hvd_dbs.cli.report.verdict import Verdict
from hvd_dbs.job.journal import JournalPart


def write_files(
    part: JournalPart,
    verdict: Verdict | str,
    name: str,
    *,
    page: Path | None = None,
    trace: Path | None = None,
    picture: Path | None = None,
) -> None:
    """Writes those that are asked for.

    Args:
        part: Of the journal.
        verdict: On it, or why there is none.
        name: Of the journal.
        page: HTML file.
        trace: JSON file.
        picture: File whose suffix says the format.

    Raises:
        InputError: If one cannot be written.
    """
    writers: tuple[tuple[str, Path | None, Callable[[Path], None]], ...] = (
        ("--page", page, lambda path: write_page(part, verdict, name, path)),
        ("--trace", trace, lambda path: write_trace(part, path)),
        ("--picture", picture, lambda path: draw(part, path)),
    )
    for option, path, write in writers:
        if path is not None:
            try:
                write(path)
            except (OSError, RuntimeError) as error:
                raise InputError(f"{option} {path}: {error}") from error
