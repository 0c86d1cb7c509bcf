"""`hvd-dbs watch`: a job in a terminal, from the journal that it is writing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hvd_dbs.cli.input_error import InputError
from hvd_dbs.cli.standard_output import say
from hvd_dbs.cli.watch.follower import Follower
from hvd_dbs.cli.watch.view import round_line, view
from hvd_dbs.job.journal_entries import RoundEntry

_LINES_BESIDE_RANKS = 16
"""Lines of a terminal that are not ranks."""

_SECONDS = click.FloatRange(min=0.1)


@click.command("watch")
@click.argument("journal", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--wait", type=_SECONDS, default=600.0, help="Seconds to wait for the first round.")
@click.option("--idle", type=_SECONDS, default=600.0, help="Seconds without a round that end it.")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    help="Seconds between two looks at it.",
)
def command(journal: Path, wait: float, idle: float, every: float) -> None:
    """Shows a running job from its JOURNAL, updated in place.

    JOURNAL need not exist yet. It ends by Ctrl-C, or once no round was written for --idle
    seconds, when the job has ended or stands still. Where the output is no terminal, each round is
    a line.

    Exit codes: 0; 2 if no round is written within --wait seconds, or JOURNAL cannot be read.
    """
    watch = _Watch(journal, wait, idle, every)
    try:
        watch.run()
    except BrokenPipeError:  # Who reads has seen enough; click ends quietly.
        raise
    except OSError as error:
        raise InputError(f"{journal} cannot be read: {error.strerror}.") from error
    except KeyboardInterrupt:  # That is how a watch ends.
        return


class _Watch:
    """One watch of a journal."""

    def __init__(self, journal: Path, wait: float, idle: float, every: float) -> None:
        self._journal, self._wait, self._idle, self._every = journal, wait, idle, every
        self._follower = Follower(journal)
        self._console = Console()

    def run(self) -> None:
        """Follows the journal until it has ended.

        Raises:
            InputError: If no round is written in time.
            OSError: If the journal cannot be read.
        """
        self._await_round()
        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as live:
                self._show(live)
        else:
            self._list()
        say(
            f"No round was written to {self._journal.name} for {self._idle:g} s: the job has ended "
            f"or stands still."
        )

    def _await_round(self) -> None:
        start = time.monotonic()
        self._follower.read()
        if self._follower.part is None:
            say(f"Waiting for the first round in {self._journal}, for {self._wait:g} s at most.")
        while self._follower.part is None:
            if time.monotonic() - start >= self._wait:
                there = "has no round of a job" if self._journal.exists() else "does not exist"
                raise InputError(
                    f"{self._journal} {there} after {self._wait:g} s; expected the file of "
                    f"hvd.Balancer(..., journal=FILE). Start the job, or give --wait SECONDS."
                )
            time.sleep(self._every)
            self._follower.read()

    def _show(self, live: Live) -> None:
        last, shown = time.monotonic(), None
        while (silent := time.monotonic() - last) < self._idle:
            part = self._follower.part
            if part is not None and (shown is None or silent == 0):
                num_ranks = max(self._console.height - _LINES_BESIDE_RANKS, 4)
                shown = view(part, num_ranks, self._console.encoding.startswith("utf"))
            if shown is not None:
                age = Text(f"{silent:.0f} s since the last round; Ctrl-C ends this", style="dim")
                live.update(Group(shown, age), refresh=True)
            time.sleep(self._every)
            if self._follower.read():
                last, shown = time.monotonic(), None

    def _list(self) -> None:
        last, part = time.monotonic(), self._follower.part
        rounds: Iterable[RoundEntry] = part.rounds if part is not None else ()
        while time.monotonic() - last < self._idle:
            for entry in rounds:
                say(round_line(entry))
            time.sleep(self._every)
            if self._follower.read():
                last = time.monotonic()
            rounds = self._follower.new_rounds
