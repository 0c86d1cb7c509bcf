"""Journals for tests of those who read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvd_dbs.job.journal import Journal


def written(path: Path, *entries: Any) -> Path:
    """A journal of these entries."""
    journal = Journal(path)
    for entry in entries:
        journal.write(entry)
    journal.flush()
    return path
