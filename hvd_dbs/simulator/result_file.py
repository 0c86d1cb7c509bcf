"""Runs as plain JSON data; docs/simulator.md describes the format."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hvd_dbs.simulator.figures import Figures
from hvd_dbs.simulator.simulation import Run

FORMAT = 1


def run_data(run: Run, figures: Figures, with_steps: bool) -> dict[str, Any]:
    """One run as JSON data.

    Args:
        run: The run.
        figures: Its figures.
        with_steps: Whether to add the plans and the seconds of each step.
    """
    scenario = run.conditions.scenario
    data: dict[str, Any] = {
        "scenario": scenario.name,
        "strategy": run.strategy,
        "seed": scenario.seed,
        "ranks": scenario.size,
        "steps": scenario.steps,
        "global_batch_size": scenario.global_batch_size,
        "figures": json.loads(json.dumps(asdict(figures))),
        "warnings": list(run.warnings),
    }
    if with_steps:
        data["plans"] = [
            {
                "step": change.step,
                "batch_sizes": change.batch_sizes.tolist(),
                "reason": change.reason,
                "resized": change.resized,
            }
            for change in run.changes
        ]
        data["true_seconds"] = run.true_seconds.tolist()
        data["clock_seconds"] = run.clock_seconds.tolist()
        data["oracle_seconds"] = run.conditions.oracle_seconds.tolist()
    return data


def write_json(path: Path, kind: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Writes `{"format": 1, kind: entries}`: to a temporary file, which is then renamed.

    A link stays one: the file that it leads to is replaced. What is no regular file, such as a
    pipe or a device, is written into.

    Raises:
        OSError: If the file cannot be written.
    """
    text = json.dumps({"format": FORMAT, kind: list(entries)}, indent=1, allow_nan=False) + "\n"
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
