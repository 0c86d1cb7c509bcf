"""What a job that is observed would gain, from rounds as they are measured."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.job.observers import strategy_gains
from hvd_dbs.job.observers.strategy_gains import StrategyGains
from hvd_dbs.job.scores import RankScores

SIZE = 4
EVEN = (16,) * SIZE
JOB = JobEntry(tuple("abcd"), "observe", 16 * SIZE)


def observe(gains, speeds, caplog):
    """What is logged in a long epoch, in 30 rounds of ranks of such speeds, and in a second one."""
    caplog.set_level(logging.INFO, "hvd_dbs")
    random = np.random.default_rng(0)
    for epoch in range(2):
        gains.on_begin(JOB)
        for number in range(30):
            busy = 0.016 / np.array(speeds) * np.exp(0.01 * random.standard_normal(SIZE))
            entry = RoundEntry(
                epoch=epoch,
                step=20 * number,
                batch_sizes=EVEN,
                busy_seconds=tuple(busy.tolist()),
                cpu_load=(0.0,) * SIZE,
                step_seconds=float(busy.max()),
                plan_before=EVEN,
                plan=EVEN,
                reason="the job is observed",
                predicted_seconds=(0.1, 0.1),
                num_steps=20,
            )
            gains.on_round(entry, RankScores.of(SIZE))
        gains.on_end()
    return [text for text in caplog.messages if "observed for" in text]


def test_it_is_logged_once_what_each_strategy_would_gain(caplog):
    (text,) = observe(StrategyGains(after_seconds=0.0), [1.0, 1.0, 0.5, 0.25], caplog)
    assert "a step takes 6" in text  # 64 ms.
    gains = dict(part.split()[-2:] for part in text.rpartition("finds: ")[2].split(", "))
    # A quarter of the work on the slowest rank: 64 samples at 2,750 a second are 23.3 ms.
    for strategy in ("adaptive", "dbs"):
        assert float(gains[strategy]) == pytest.approx(2.75, rel=0.15)
    assert "even" not in gains and "observe" not in gains


def test_equal_ranks_have_nothing_to_gain(caplog):
    (text,) = observe(StrategyGains(after_seconds=0.0), [1.0] * SIZE, caplog)
    assert text.endswith("a step takes 16.2 ms, and no strategy would gain anything")


def test_a_replay_that_fails_is_said_and_not_tried_again(caplog, monkeypatch):
    monkeypatch.setattr(strategy_gains, "_PROGRAM", "raise SystemExit('no simulator here')")
    gains = StrategyGains(after_seconds=0.0)
    with pytest.raises(RuntimeError, match="the replay failed: no simulator here"):
        observe(gains, [1.0] * SIZE, caplog)
    assert observe(gains, [1.0] * SIZE, caplog) == []


def test_nothing_is_said_before_its_time(caplog):
    assert observe(StrategyGains(), [1.0] * SIZE, caplog) == []
