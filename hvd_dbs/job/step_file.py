"""Tells an outside observer how far training is, through a file that it names."""

from __future__ import annotations

import contextlib
import os

VARIABLE = "HVD_DBS_STEP_FILE"


class StepFile:
    """Writes the number of finished steps to the file named by HVD_DBS_STEP_FILE.

    `scripts/heterogeneous.sh` sets it to change a rank's speed at a given step. Without the
    variable nothing is written, and a file that cannot be written never ends the training.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._num_steps = 0
        path = os.environ.get(VARIABLE)
        if path:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)

    def advance(self, num_steps: int) -> None:
        """Notes that so many more steps are finished."""
        self._num_steps += num_steps
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, f"{self._num_steps}\n".encode(), 0)
