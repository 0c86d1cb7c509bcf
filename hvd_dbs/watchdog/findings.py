"""A finding about a rank: its sentence, made in `stall_detection`, and the action it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_MOST_NAMED = 32
"""Ranks that are named at once."""


class Action(Enum):
    """What a finding asks for."""

    NONE = 0
    END_RANK = 1
    END_JOB = 2


@dataclass(frozen=True)
class Finding:
    """Something to be reported.

    Attributes:
        rank: Which rank it is about; -1: all.
        text: One line for the log.
        is_over: Whether the rank goes on again.
        action: What has to be done. `END_RANK` found by rank 0: the rank ends itself. Found by
            another rank on rank 0's host: rank 0's process does not run, and is killed.
        progress: The rank's progress, for an `END_RANK`: void if it has made more since.
    """

    rank: int
    text: str
    is_over: bool = False
    action: Action = Action.NONE
    progress: int = -1


def shortened(findings: list[Finding]) -> list[Finding]:
    """All that ask for something, and not too many others."""
    named = [finding for finding in findings if finding.action is Action.NONE]
    left_out = {id(finding) for finding in named[_MOST_NAMED:]}
    if not left_out:
        return findings
    more = Finding(-1, f"{len(left_out)} more ranks like these keep the others waiting.")
    return [*(finding for finding in findings if id(finding) not in left_out), more]
