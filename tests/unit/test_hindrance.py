"""Throttling and page faults, from given folders of control groups and from this process."""

from __future__ import annotations

import math
import mmap

import pytest

from hvd_dbs.host import hindrance
from hvd_dbs.host.hindrance import HindranceMeter

V1, V2 = "nr_periods 7\nnr_throttled 2\nthrottled_time {}000000000\n", "throttled_usec {}000000\n"


class Machine:
    """Control groups, and a clock that only goes on when it is said so."""

    def __init__(self, folder, own):
        self.now, self._folder = 0.0, folder
        self.write("proc/self/cgroup", own)

    def write(self, name, text):
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    one = Machine(tmp_path, "4:cpu,cpuacct:/job\n0::/job/rank\n")
    monkeypatch.setattr(hindrance.time, "monotonic", lambda: one.now)
    return one


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sys/fs/cgroup/cpu,cpuacct/job/cpu.stat", V1),
        ("sys/fs/cgroup/job/rank/cpu.stat", V2),
        ("sys/fs/cgroup/job/cpu.stat", V2),  # The quota of a group around it.
        ("sys/fs/cgroup/cpu.stat", V2),  # A container that does not see where it is.
    ],
)
def test_throttled_time_is_a_part_of_the_time_since_the_last_call(machine, tmp_path, name, text):
    machine.write(name, text.format(3))
    meter = HindranceMeter(tmp_path)
    machine.now = 8.0
    machine.write(name, text.format(5))
    assert meter.take().throttled_share == 0.25
    machine.now = 12.0
    assert meter.take().throttled_share == 0.0
    machine.now = 13.0
    machine.write(name, text.format(9))  # Four processors for a second each.
    assert meter.take().throttled_share == 1.0


def test_the_same_throttling_does_not_count_twice(machine, tmp_path):
    names = ("sys/fs/cgroup/job/rank/cpu.stat", "sys/fs/cgroup/job/cpu.stat")
    for name in names:
        machine.write(name, V2.format(0))
    meter = HindranceMeter(tmp_path)
    machine.now = 10.0
    for name in names:
        machine.write(name, V2.format(4))
    assert meter.take().throttled_share == pytest.approx(0.4)


@pytest.mark.parametrize(
    "text", ["", "usage_usec 7\n", "throttled_usec many\n", "throttled_usec\n"]
)
def test_a_group_that_does_not_say_leaves_it_unknown(machine, tmp_path, text):
    machine.write("sys/fs/cgroup/job/rank/cpu.stat", text)
    meter = HindranceMeter(tmp_path)
    machine.now = 1.0
    assert math.isnan(meter.take().throttled_share)


def test_a_group_that_goes_away_leaves_it_unknown(machine, tmp_path):
    machine.write("sys/fs/cgroup/job/rank/cpu.stat", V2.format(1))
    meter = HindranceMeter(tmp_path)
    (tmp_path / "sys/fs/cgroup/job/rank/cpu.stat").unlink()
    machine.now = 1.0
    assert math.isnan(meter.take().throttled_share)


def test_page_faults_are_those_of_this_process_since_the_last_call():
    num_pages = 2000
    meter = HindranceMeter()
    with mmap.mmap(-1, num_pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(num_pages):
            memory[page * mmap.PAGESIZE] = 1
    assert meter.take().page_faults >= num_pages
    assert meter.take().page_faults < num_pages
