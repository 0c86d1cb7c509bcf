"""When a profile is used and what goes into it."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_dbs.balancing import Bounds, Controller, strategies
from hvd_dbs.balancing.place import Place
from hvd_dbs.balancing.speed_points import SpeedPoint
from hvd_dbs.comm.collective import AssumedCollective
from hvd_dbs.job.decision import Received
from hvd_dbs.job.profile_file import read_profile
from hvd_dbs.job.speed_profile import SpeedProfile

PLACES = [Place("a", "fast"), Place("b", "slow")]
BALANCED, EVEN = (9, 3), (6, 6)


def received(batch_sizes, busy_seconds):
    none = np.full(2, np.nan)
    return Received(np.array(batch_sizes, float), np.array(busy_seconds, float), none, np.nan)


def new(path, strategy="dbs", places=PLACES):
    """The controller and the profile of rank 0 of 2."""
    controller = Controller(strategies.resolve(strategy), 12, Bounds.of(2, minimum=1))
    return controller, SpeedProfile(AssumedCollective(0, 2), controller, places, path)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "cluster.json"
    _, profile = new(path)
    profile.begin_training("m", is_new=True)
    profile.add(received(EVEN, [6.0, 18.0]))
    profile.add(received(BALANCED, [9.0, 9.0]))
    profile.add(None)
    profile.write()
    return path


@pytest.mark.parametrize("strategy", sorted(strategies.PRESETS))
def test_strategies_that_decide_begin_with_the_plan_of_the_profile(path, strategy):
    controller, profile = new(path, strategy)
    assert profile.is_used and controller.plan.batch_sizes == EVEN
    profile.begin_training("m", is_new=True)
    assert controller.plan.batch_sizes == (EVEN if strategy in ("even", "observe") else BALANCED)


def test_a_training_that_goes_on_keeps_its_plan(path):
    controller, profile = new(path)
    profile.begin_training("m", is_new=False)
    assert controller.plan.batch_sizes == EVEN
    profile.begin_training("m", is_new=True)  # Of an elastic job, before its first commit.
    assert controller.plan.batch_sizes == EVEN


def test_another_model_of_a_balancer_has_points_of_its_own(path):
    _, profile = new(path)
    profile.begin_training("m", is_new=True)
    profile.add(received(BALANCED, [9.0, 9.0]))
    profile.begin_training("n", is_new=False)
    profile.add(received(EVEN, [1.0, 2.0]))
    profile.write()
    speeds = read_profile(path, "n", 12).speeds
    assert speeds == {"fast": [SpeedPoint(6, 1.0)], "slow": [SpeedPoint(6, 2)]}


def test_new_ranks_count_as_what_they_are(path):
    _, profile = new(path)
    profile.begin_training("m", is_new=True)
    profile.change_ranks(PLACES[::-1])
    profile.add(received((4, 8), [12.0, 8.0]))
    profile.write()
    speeds = read_profile(path, "m", 12).speeds
    assert [point.batch_size for point in speeds["fast"]] == [6, 8, 9]
    assert [point.batch_size for point in speeds["slow"]] == [3, 4, 6]


def test_without_a_file_nothing_is_kept():
    controller, profile = new(None)
    profile.begin_training("m", is_new=True)
    profile.add(received(EVEN, [6.0, 18.0]))
    profile.write()
    assert not profile.is_used and controller.plan.batch_sizes == EVEN


def test_a_full_disk_ends_nothing(path, monkeypatch, caplog):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("hvd_dbs.job.speed_profile.write_profile", full)
    _, profile = new(path)
    profile.begin_training("m", is_new=True)
    for _ in range(2):
        profile.add(received(EVEN, [6.0, 18.0]))
        profile.write()
    assert [record.levelname for record in caplog.records if "No space" in record.message] == [
        "WARNING"
    ]
