"""What each strategy would gain, once a job has been observed for some minutes."""

from __future__ import annotations

import atexit
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from hvd_dbs.job.journal import Journal
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.job.observers.observer import Observer
from hvd_dbs.job.scores import RankScores

_LOGGER = logging.getLogger(__name__)

_AFTER_SECONDS, _LEAST_ROUNDS = 180.0, 20
"""Time to get warm, and rounds enough to know the noise."""
_MOST_STEPS = 3000
"""Steps that are replayed, the last ones: half a minute of one processor, with all strategies."""
_LEAST_EPOCHS = 8
"""Epochs that these steps are at least taken for: strategies that decide once an epoch shall have
their plans in the second half, also where an epoch takes hours."""
_MOST_SECONDS = 1800.0
_NOTICEABLE = 1.02
"""Times as fast: less is no gain that a replay can be trusted with."""

_PROGRAM = "import os; os.nice(19); from hvd_dbs.cli.main import main; main()"


class StrategyGains(Observer):
    """Logs once how long steps would be with each strategy, by a replay in the simulator.

    The replay is `hvd-dbs simulate --replay`, in a process of its own with the lowest priority: in
    this one it would hold Python's lock while training needs it.

    Args:
        after_seconds: When to do so.
    """

    def __init__(self, after_seconds: float = _AFTER_SECONDS) -> None:
        self._after_seconds = after_seconds
        self._start = time.monotonic()
        self._job: JobEntry | None = None
        self._rounds: list[RoundEntry] = []
        self._is_done = False

    def on_begin(self, job: JobEntry) -> None:
        """Forgets rounds of other ranks, or of another global batch size."""
        if job != self._job:
            self._job, self._rounds, self._start = job, [], time.monotonic()

    def on_round(self, entry: RoundEntry, scores: RankScores) -> None:
        """Keeps the rounds, until there are enough."""
        if self._is_done or self._job is None or not entry.num_steps:
            return
        self._rounds.append(entry)
        while sum(one.num_steps for one in self._rounds[1:]) > _MOST_STEPS:
            self._rounds.pop(0)
        seconds = time.monotonic() - self._start
        if seconds >= self._after_seconds and len(self._rounds) >= _LEAST_ROUNDS:
            self._is_done = True
            _LOGGER.info("%s", _text(self._replay(self._job), seconds))
            self._rounds = []

    def _replay(self, job: JobEntry) -> dict[str, float]:
        """Seconds of a step by strategy, in the second half of the rounds."""
        longest = max(sum(entry.num_steps for entry in self._rounds) // _LEAST_EPOCHS, 1)
        with tempfile.TemporaryDirectory(prefix="hvd_dbs") as folder:
            given, found = Path(folder, "observed.jsonl"), Path(folder, "runs.json")
            journal = Journal(given)
            journal.write(job)
            for entry in self._rounds:
                journal.write(replace(entry, step=min(entry.step, longest)))
            _run("simulate", "--replay", str(given), "--json", str(found))
            runs = json.loads(found.read_text())["runs"]
        return {
            run["strategy"]: statistics.fmean(run["clock_seconds"][run["steps"] // 2 :])
            for run in runs
        }

    def __repr__(self) -> str:
        return "StrategyGains()"


def _run(*arguments: str) -> None:
    """Runs `hvd-dbs`; it ends with this process at the latest.

    Raises:
        RuntimeError: If it fails.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.kill)
    try:
        _, errors = process.communicate(timeout=_MOST_SECONDS)
    finally:
        process.kill()
        atexit.unregister(process.kill)
    if process.returncode:
        raise RuntimeError(f"the replay failed: {errors.strip()[-500:]}")


def _text(seconds_by_strategy: dict[str, float], seconds: float) -> str:
    even = seconds_by_strategy["even"]
    gains = sorted(
        ((even / found, name) for name, found in seconds_by_strategy.items() if name != "even"),
        reverse=True,
    )
    observed = f"observed for {seconds / 60:.0f} minutes: a step takes {1000 * even:.1f} ms"
    if gains[0][0] < _NOTICEABLE:
        return f"{observed}, and no strategy would gain anything"
    row = ", ".join(f"{name} {gain:.2f}" for gain, name in gains)
    return f"{observed}; times as fast with a strategy, as a replay in the simulator finds: {row}"
