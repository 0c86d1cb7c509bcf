"""What the notes of a training say about every sample: used once in each epoch, or not. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]


def problems(events: Sequence[Event], num_samples: int, num_epochs: int) -> list[str]:
    """What is wrong with a training that has ended; empty if nothing is.

    A training is a row of runs, each of which begins from a commit. A step becomes part of the
    history with the commit after it, unless a later run begins from a commit before that.

    Args:
        events: Notes of all processes.
        num_samples: Samples of the data set.
        num_epochs: Epochs that training was to have.
    """
    found = []
    ends = [event for event in events if event["event"] == "end"]
    if not ends:
        return ["no rank has come to the end"]
    if len({event["digest"] for event in ends}) > 1:
        found.append(f"the weights of the {len(ends)} ranks differ at the end")
    committed = committed_steps(events, final_commit=max(event["commits"] for event in ends))
    uses: dict[int, Counter[int]] = defaultdict(Counter)
    for event in committed:
        uses[event["epoch"]].update(event["ids"])
    for epoch in range(num_epochs):
        lost = set(range(num_samples)) - set(uses[epoch])
        repeated = [sample for sample, count in uses[epoch].items() if count > 1]
        if lost:
            found.append(f"epoch {epoch} has lost {len(lost)} samples, such as {sorted(lost)[:5]}")
        if repeated:
            found.append(
                f"epoch {epoch} has used {len(repeated)} samples again, such as "
                f"{sorted(repeated)[:5]}"
            )
    if set(uses) - set(range(num_epochs)):
        found.append(f"epochs {sorted(set(uses) - set(range(num_epochs)))} were not asked for")
    return found


def committed_steps(events: Sequence[Event], final_commit: int) -> list[Event]:
    """The steps that are part of the history, of all ranks."""
    begins: dict[str, Event] = {}
    for event in sorted(events, key=lambda event: event["time"]):
        if event["event"] == "begin":
            begins.setdefault(event["run"], event)
    # Each run discards what was not committed before it.
    kept, bound = {}, final_commit
    for run, begin in reversed(begins.items()):
        kept[run] = bound
        bound = min(bound, begin["commits"])
    steps = [event for event in events if event["event"] == "step"]
    return [event for event in steps if event["commits"] < kept[event["run"]]]
