"""What ranks and rank 0 report to each other, beside the collectives that may be blocked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WAITING = "waiting for others"
BUILDING = "building the graph"
LEFT = "not training any more"
REGROUPING = "regrouping"


@dataclass(frozen=True)
class Heartbeat:
    """What a rank reports of itself.

    Attributes:
        rank: Whose heartbeat it is.
        progress: A number that grows with everything that it finishes.
        num_steps: Training steps that it has finished.
        last_step: The last one, as text.
        doing: What it is doing; `WAITING`, `BUILDING`, `LEFT` and `REGROUPING` have a meaning,
            any other is text.
        operation: What it waits in, the same text on all ranks that wait in the same one.
        computing_seconds: CPU time that it has computed with, counted while it makes no progress.
        running: Silent ranks of its host that it was asked to look at, and whose processes run.
        frozen: Those whose processes do not run.
    """

    rank: int
    progress: int = 0
    num_steps: int = 0
    last_step: str = "none"
    doing: str = "starting"
    operation: str = ""
    computing_seconds: float = 0.0
    running: tuple[int, ...] = ()
    frozen: tuple[int, ...] = ()

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Heartbeat:
        """From JSON.

        Raises:
            TypeError: If there are other fields, or one is of another type.
        """
        beat = cls(**_with_tuples(fields))
        _require(int, beat.rank, beat.progress, beat.num_steps, *beat.running, *beat.frozen)
        _require(str, beat.last_step, beat.doing, beat.operation)
        _require(float, beat.computing_seconds)
        return beat

    @property
    def has_left(self) -> bool:
        """Whether no more heartbeats follow it."""
        return self.doing in (LEFT, REGROUPING)


@dataclass(frozen=True)
class Answer:
    """What rank 0 sends back.

    Attributes:
        answers: Number of the packet that it answers.
        look_at: Silent ranks of the receiver's host; it reports whether their processes run.
        kill: Those of them to be killed if their processes do not run.
        end: The receiver ends itself, if this is its progress and it does not wait; -1: it does
            not.
        left: `LEFT` or `REGROUPING`, if rank 0 listens no more.
    """

    answers: int
    look_at: tuple[int, ...] = ()
    kill: tuple[int, ...] = ()
    end: int = -1
    left: str = ""

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Answer:
        """From JSON.

        Raises:
            TypeError: If there are other fields, or one is of another type.
        """
        answer = cls(**_with_tuples(fields))
        _require(int, answer.answers, *answer.look_at, *answer.kill, answer.end)
        _require(str, answer.left)
        return answer


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}


def _require(kind: type, *values: object) -> None:
    if not all(type(value) is kind for value in values):
        raise TypeError(f"expected {kind.__name__} in {values}")
