"""What of its machine this process may use."""

from __future__ import annotations

import os


def num_cores() -> int:
    """Cores that this process may use, as TensorFlow counts them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
