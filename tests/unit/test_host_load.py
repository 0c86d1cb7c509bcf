"""The sampler of the host's load, on a host that is made up."""

from __future__ import annotations

import math
import threading
from collections import namedtuple

import pytest

from hvd_dbs.host import host_load
from hvd_dbs.host.host_load import HostLoad, Load

Host = namedtuple("Host", "user system idle iowait guest guest_nice")
Own = namedtuple("Own", "user system children_user children_system")
Memory = namedtuple("Memory", "percent")


class Machine:
    """Stands in for psutil: four processors, one second a sample."""

    def __init__(self, others, own, memory=25.0):
        self.others, self.own, self.memory = others, own, memory
        self.seconds = 0
        self.sampled = threading.Event()

    def cpu_times(self):
        busy = self.seconds * (self.others + self.own)
        return Host(busy * 0.75, busy * 0.25, self.seconds * 4.0 - busy, 0.0, busy, 0.0)

    def Process(self):  # noqa: N802
        machine = self

        class Process:
            def cpu_times(self):
                own = machine.seconds * machine.own
                machine.seconds += 1
                return Own(own * 0.5, own * 0.2, own * 0.2, own * 0.1)

        return Process()

    def virtual_memory(self):
        if self.seconds > 3:
            self.sampled.set()
        return Memory(self.memory)


def sampled(monkeypatch, machine):
    monkeypatch.setattr(host_load, "psutil", machine)
    with HostLoad(period_seconds=0.001) as load:
        assert machine.sampled.wait(10)
        # The sample that set the event may be on its way; the one before says the same.
        return load.latest()


def test_own_processor_time_is_not_load(monkeypatch):
    load = sampled(monkeypatch, Machine(others=1.0, own=2.0))
    assert load.cpu == pytest.approx(0.25) and load.memory == 0.25


def test_idle_and_overbooked_hosts_stay_between_0_and_1(monkeypatch):
    assert sampled(monkeypatch, Machine(0.0, 3.0)).cpu == pytest.approx(0.0)
    assert sampled(monkeypatch, Machine(9.0, 0.0, memory=120.0)) == Load(1.0, 1.0)


def test_unknown_when_psutil_fails_and_said_once(monkeypatch, caplog):
    calls = threading.Semaphore(0)

    class Broken:
        def Process(self):  # noqa: N802
            calls.release()
            raise PermissionError("no /proc")

    monkeypatch.setattr(host_load, "psutil", Broken())
    with HostLoad(period_seconds=0.001) as load:
        for _ in range(3):
            assert calls.acquire(timeout=10)
        assert math.isnan(load.latest().cpu) and math.isnan(load.latest().memory)
    assert caplog.text.count("no /proc") == 1


def test_starts_once_and_stops_cleanly():
    load = HostLoad(period_seconds=60.0)
    assert math.isnan(load.latest().cpu)
    before = threading.active_count()
    load.start()
    load.start()
    assert threading.active_count() == before + 1
    load.stop()  # At once, although a period is a minute.
    load.stop()
    assert threading.active_count() == before
    assert math.isnan(load.latest().cpu)


def test_samples_this_host():
    """With the real psutil: after two samples the numbers are loads."""
    sampler = host_load._Sampler()
    load = sampler()
    assert 0.0 <= load.memory <= 1.0
    assert math.isnan(load.cpu) or 0.0 <= load.cpu <= 1.0


def test_a_period_is_positive():
    with pytest.raises(ValueError, match="period_seconds=0"):
        HostLoad(0)
