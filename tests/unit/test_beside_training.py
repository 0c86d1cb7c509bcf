"""When threads beside the training begin to work."""

import pytest

from hvd_dbs.host import beside_training
from hvd_dbs.host.beside_training import BesideTraining


class Clock:
    """Stands still but for sleeping."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    one = Clock()
    monkeypatch.setattr(beside_training, "time", one)
    return one


def waited(beside, clock):
    start = clock.now
    beside.wait()
    return clock.now - start


@pytest.mark.parametrize(("step_seconds", "expected"), [(0.02, 0.001), (3.0, 0.005)])
def test_work_begins_once_the_next_step_has_begun(clock, step_seconds, expected):
    beside = BesideTraining()
    beside.end_step()
    clock.now += step_seconds
    beside.end_step()
    assert waited(beside, clock) == pytest.approx(expected)


def test_work_that_training_waits_for_begins_at_once(clock):
    beside = BesideTraining()
    assert waited(beside, clock) == 0
    beside.end_step()
    assert waited(beside, clock) == 0
    clock.now += 1.0
    beside.end_step()
    beside.restart()
    beside.end_step()
    assert waited(beside, clock) == 0
