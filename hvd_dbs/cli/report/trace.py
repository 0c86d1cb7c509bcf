"""A journal as a trace for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hvd_dbs.balancing import Plan
from hvd_dbs.cli.report.rank_figures import start_time
from hvd_dbs.job.journal import JournalPart
from hvd_dbs.job.journal_entries import RoundEntry

_FIRST_PROCESS = 1_000_000
"""Horovod's timeline numbers its tensors from 0 on; both may stand in one trace."""


def write_trace(part: JournalPart, path: Path) -> None:
    """Writes a trace in Chrome's format: a process for each host, a thread for each rank.

    Args:
        part: At least one round.
        path: File to write.

    Raises:
        OSError: If it cannot be written.
    """
    trace = {"traceEvents": list(trace_events(part)), "displayTimeUnit": "ms"}
    path.write_text(json.dumps(trace, allow_nan=False) + "\n")


def trace_events(part: JournalPart) -> Iterator[dict[str, Any]]:
    """The events; times are whole microseconds since the first round began.

    Viewers drop a slice that ends after the one that it lies in, be it by a rounding error.

    A round is a slice on each rank. The slices within it have the lengths of what its mean step
    consists of, times its steps: a journal has no single steps.
    """
    hosts = list(dict.fromkeys(part.job.hosts))
    process = {host: _FIRST_PROCESS + number for number, host in enumerate(hosts)}
    plans = _FIRST_PROCESS + len(hosts)
    for host in hosts:
        yield _named("process_name", process[host], 0, f"host {host}")
    yield _named("process_name", plans, 0, "plans")
    for rank, host in enumerate(part.job.hosts):
        yield _named("thread_name", process[host], rank, f"rank {rank}")
    first, start = start_time(part), 0
    for entry in part.rounds:
        end = max(round((entry.time - first) * 1e6), start)
        for rank, host in enumerate(part.job.hosts):
            place = {"pid": process[host], "tid": rank}
            yield from _slices(entry, rank, (start, end), place)
        yield from _plan_events(entry, start, end, plans)
        start = end


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slices(
    entry: RoundEntry, rank: int, times: tuple[int, int], place: dict[str, int]
) -> Iterator[dict[str, Any]]:
    facts = {
        "epoch": entry.epoch,
        "step": entry.step,
        "num_steps": entry.num_steps,
        "busy_seconds": _known(entry.busy_seconds[rank]),
        "step_seconds": _known(entry.step_seconds),
        "cpu_load": _known(entry.cpu_load[rank]),
    }
    name = f"{entry.batch_sizes[rank]} samples"
    start, end = times
    yield {"ph": "X", "name": name, "ts": start, "dur": end - start, "args": facts, **place}
    busy, step = entry.busy_seconds[rank], entry.step_seconds
    if not (busy > 0 and step > 0):
        return
    waited = entry.input_seconds[rank] if entry.input_seconds else math.nan
    waited = min(waited, busy) if waited > 0 else 0.0
    longest = max(one for one in entry.busy_seconds if one > 0)
    parts = {
        "waits for data": waited,
        "works": busy - waited,
        "waits for slower ranks": longest - busy,
        "communication and the rest": max(step - longest, 0.0),
    }
    ends = np.cumsum(list(parts.values()))
    edges = [start, *(start + np.rint((end - start) * ends / ends[-1])).astype(int).tolist()]
    for name, (begin, stop) in zip(parts, pairwise(edges), strict=True):
        if stop > begin:
            duration = stop - begin
            yield {"ph": "X", "name": name, "ts": begin, "dur": duration, "args": {}, **place}


def _plan_events(entry: RoundEntry, start: int, end: int, process: int) -> Iterator[dict[str, Any]]:
    sizes = {f"rank {rank}": size for rank, size in enumerate(entry.batch_sizes)}
    place = {"pid": process, "tid": 0}
    yield {"ph": "C", "name": "local batch size", "ts": start, "args": sizes, **place}
    if entry.step_seconds > 0:
        milliseconds = {"ms": 1000 * entry.step_seconds}
        yield {"ph": "C", "name": "step", "ts": start, "args": milliseconds, **place}
    if entry.changed:
        args = {"reason": entry.reason, "before": str(Plan(entry.plan_before))}
        name = f"plan {Plan(entry.plan)}"
        yield {"ph": "i", "s": "g", "name": name, "ts": end, "args": args, **place}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
