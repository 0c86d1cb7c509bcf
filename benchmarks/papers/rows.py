"""What a paper published beside what was measured here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        what: What the figure is.
        published: What the paper says; "-" where it gives no such figure.
        here: What was measured.
        spread: Quartiles, and of how many; or that the figure is exact.
        cluster: What it was measured on.
    """

    what: str
    published: str
    here: str
    spread: str
    cluster: str


def spread_of(values: Iterable[float], form: str, unit: str) -> tuple[str, str]:
    """Median, and quartiles with their number, as text.

    Args:
        values: One a round, epoch or seed, as `unit` says.
        form: A format, such as ".2f" or ".0%".
        unit: What there is one value of.
    """
    found = np.array(list(values), dtype=np.float64)
    low, middle, high = np.percentile(found, [25, 50, 75])
    return f"{middle:{form}}", f"{low:{form}} to {high:{form}}, {len(found)} {unit}"


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = ["| what | published | here | spread | cluster |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.published} | {row.here} | {row.spread} | {row.cluster} |"
        for row in rows
    ]
    return "\n".join(lines)


def report(title: str, rows: Sequence[Row], path: Path) -> None:
    """Prints the table and keeps its rows as JSON."""
    print(f"\n**{title}**\n\n{table(rows)}\n", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"title": title, "rows": [asdict(row) for row in rows]}) + "\n")
