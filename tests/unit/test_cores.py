"""The time that a container leaves its processes, from given folders of control groups."""

from __future__ import annotations

import math

import pytest

from hvd_dbs.host import cores

UNLIMITED = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
LIMITED = {"cpu.cfs_quota_us": "250000\n", "cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {}, math.inf),
        ("", {"cpu.max": "150000 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "nonsense\n"}, math.inf),
        ("nonsense\n", {"cpu.max": "nonsense\n"}, math.inf),
        # The strictest of a group and those around it holds.
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
        ("0::/a/b\n", {"a/b/cpu.max": "20000 10000", "a/cpu.max": "800000 100000"}, 2),
        ("0::/a\n", {"other/cpu.max": "100000 100000"}, math.inf),
        # A container that does not see where it is on its host.
        ("0::/docker/a1\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("4:cpu,cpuacct:/docker/a1\n", {f"cpu/{k}": v for k, v in LIMITED.items()}, 2.5),
        ("4:cpuacct,cpu:/a\n", {f"cpuacct,cpu/a/{k}": v for k, v in LIMITED.items()}, 2.5),
        ("4:cpu:/\n", UNLIMITED, math.inf),
        ("4:cpuset:/a\n", {f"cpuset/a/{k}": v for k, v in LIMITED.items()}, math.inf),
        # Both versions beside each other.
        ("4:cpu:/\n0::/a\n", UNLIMITED | {"unified/a/cpu.max": "300000 100000\n"}, 3),
    ],
)
def test_the_quota_of_a_container(tmp_path, own, files, expected):
    texts = {"proc/self/cgroup": own} | {f"sys/fs/cgroup/{k}": v for k, v in files.items()}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores.cpu_quota(tmp_path) == expected


@pytest.mark.parametrize("own", ["4:cpu:/a\n", "4:cpu,cpuacct:/a\n"])
def test_a_group_is_looked_at_once_whatever_its_names_are(tmp_path, own):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(own)
    folder = tmp_path / "sys/fs/cgroup/cpu"
    (folder / "a").mkdir(parents=True)
    (folder.parent / "cpu,cpuacct").symlink_to(folder)
    assert sorted(cores.cpu_groups(tmp_path)) == [folder, folder / "a"]


def test_what_cannot_be_read_limits_nothing(tmp_path):
    assert cores.cpu_quota(tmp_path / "missing") == math.inf


@pytest.mark.parametrize(("quota", "expected"), [(math.inf, 8), (64.0, 8), (0.5, 0.5)])
def test_usable_is_the_lesser_of_cores_and_quota(monkeypatch, quota, expected):
    monkeypatch.setattr(cores, "num_cores", lambda: 8)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores.num_usable_cores() == expected
