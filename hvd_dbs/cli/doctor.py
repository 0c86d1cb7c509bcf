"""`hvd-dbs doctor`: whether hvd_dbs can train here, and how to fix what is wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import click

from hvd_dbs.cli.doctor_facts import look
from hvd_dbs.cli.doctor_findings import Finding, of_job
from hvd_dbs.cli.wording import counted


@click.command("doctor")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds that the ranks of a job wait for each other.",
)
def command(timeout: float) -> None:
    """Says whether hvd_dbs can train here, and how to fix what is wrong.

    Alone, or started as training is: horovodrun -np 4 hvd-dbs doctor. A problem is what training
    fails by, a warning what makes it worse than it could be.

    Exit codes: 0, or 1 if there is a problem, on all ranks.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # What matters is found, and said once.
    facts = look()
    in_job = bool(facts.launch.kind)
    report = _Report(f"rank {facts.launch.rank}: " if in_job else "")
    if not (in_job and facts.can_connect):
        report.say(of_job([facts]))  # Before Horovod starts: a broken MPI ends the process.
    if not facts.can_connect:
        # A launcher ends the ranks that wait for this one.
        raise SystemExit(report.conclude())

    from hvd_dbs.cli.doctor_job import Job, deadline

    def give_up(finding: Finding) -> int:
        report.say([*(of_job([facts]) if in_job else []), finding])
        return report.conclude()

    with deadline(timeout, give_up):
        try:
            job = Job()
        except Exception as error:
            fix = "see above; outside of a job, hvd-dbs doctor says more"
            finding = Finding("problem", f"Horovod does not start: {error}", fix)
            raise SystemExit(give_up(finding)) from None
        everybody = job.gather(facts)
        report.start, report.is_silent = "", job.rank > 0
        report.say([*(of_job(everybody) if in_job else []), *job.try_out(everybody)])
        code = report.conclude()
        job.gather(None)  # A launcher ends all ranks when one has ended with an error.
    raise SystemExit(code)


class _Report:
    """Prints findings, and what they come to.

    Args:
        start: What each line begins with.
    """

    def __init__(self, start: str) -> None:
        self.start = start
        self.is_silent = False
        self._levels: Counter[str] = Counter()

    def say(self, findings: Sequence[Finding]) -> None:
        """Prints findings."""
        for finding in findings:
            self._levels[finding.level] += 1
            self._print(f"{finding.level:8} {finding.text}")
            if finding.fix:
                self._print(f"{'':8} fix: {finding.fix}")

    def conclude(self) -> int:
        """Prints what all findings come to; the exit code."""
        counts = [
            counted(number, level)
            for level in ("problem", "warning")
            if (number := self._levels[level])
        ]
        verdict = "cannot train here" if self._levels["problem"] else "can train here"
        self._print(f"hvd_dbs {verdict}" + (f": {', '.join(counts)}" if counts else ""))
        return int(self._levels["problem"] > 0)

    def _print(self, line: str) -> None:
        if not self.is_silent:
            click.echo(f"{self.start}{line}")
