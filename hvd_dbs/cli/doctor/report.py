"""Prints what `hvd-dbs doctor` has found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from hvd_dbs.cli.doctor.finding import Finding
from hvd_dbs.cli.wording import counted


class Report:
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

    def conclude(
        self, fine: str = "hvd_dbs can train here", wrong: str = "hvd_dbs cannot train here"
    ) -> int:
        """Prints what all findings come to; the exit code.

        Args:
            fine: What is said where there is no problem.
            wrong: What is said where there is one.
        """
        counts = [
            counted(number, level)
            for level in ("problem", "warning")
            if (number := self._levels[level])
        ]
        verdict = wrong if self._levels["problem"] else fine
        self._print(verdict + (f": {', '.join(counts)}" if counts else ""))
        return int(self._levels["problem"] > 0)

    def _print(self, line: str) -> None:
        if not self.is_silent:
            click.echo(f"{self.start}{line}")
