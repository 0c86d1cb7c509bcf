"""One thing that `hvd-dbs doctor` has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hvd_dbs.rank_names import name_places

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Attributes:
        level: "problem" where training cannot work, "warning" where it is worse than it could be.
        text: What was found, in one line.
        fix: What to do about it, in one line; empty for "ok".
    """

    level: Level
    text: str
    fix: str = ""

    def __post_init__(self) -> None:
        if (self.level == "ok") != (not self.fix):
            raise ValueError(
                f"A finding of level {self.level!r} has fix={self.fix!r}. Say how to fix whatever "
                f"is not ok, and nothing else."
            )


def merge(findings: Sequence[Sequence[Finding]], hosts: Sequence[str] = ()) -> list[Finding]:
    """One finding where several ranks have the same; the ranks are named where not all have it.

    Args:
        findings: Of each rank, by rank.
        hosts: The ranks' hosts, by rank; they are named too where there are several.
    """
    ranks: dict[Finding, list[int]] = {}
    for rank, of_rank in enumerate(findings):
        for finding in of_rank:
            ranks.setdefault(finding, []).append(rank)
    places = hosts or [""] * len(findings)
    return [
        finding
        if len(of) == len(findings)
        else replace(finding, text=f"{name_places(of, places)}: {finding.text}")
        for finding, of in ranks.items()
    ]
