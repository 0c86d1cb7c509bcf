"""A job goes on by kind of device where its hosts have other names."""

from __future__ import annotations

import json

import pytest

from hvd_dbs.balancing import Bounds, Controller, Plan, strategies
from hvd_dbs.balancing.place import Place
from hvd_dbs.comm.collective import AssumedCollective
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.job.resumption import Resumption

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


def job(*places):
    """The controller of rank 0 of 2, and what it goes on with."""
    collective = AssumedCollective(0, 2)
    controller = Controller(strategies.dbs(), 12, Bounds.of(2, minimum=1))
    position = TrainingLoop(collective, controller).position
    return controller, Resumption(collective, controller, position, places, parts={})


@pytest.fixture
def state():
    controller, resumption = job(Place("x1", A100, "0a1b"), Place("x2", T4, "2c3d"))
    controller.adopt(Plan((9, 3)))
    return json.loads(json.dumps(resumption.state().plain()))


@pytest.mark.parametrize(
    ("places", "plan"),
    [
        ((Place("x1", A100), Place("x2", T4)), (9, 3)),
        ((Place("x2", T4), Place("x1", A100)), (3, 9)),
        ((Place("y1", T4), Place("y2", A100)), (3, 9)),  # Made-up names: the kind counts.
        ((Place("x1", T4), Place("x2", A100)), (3, 9)),  # Other machines have these names now.
        ((Place("x1", A100, "new"), Place("x2", T4, "names")), (9, 3)),
        ((Place("x1"), Place("x2")), (9, 3)),
    ],
)
def test_the_first_plan_follows_slots_and_kinds_of_device(state, places, plan):
    controller, resumption = job(*places)
    resumption.load(state)
    assert controller.plan.batch_sizes == plan
    controller, resumption = job(*places)
    resumption.rejoin(state, places)
    assert controller.plan.batch_sizes == plan


def test_a_state_without_kinds_of_device_goes_on_by_host(state):
    for rank in state["ranks"]:
        del rank["device"]
    controller, resumption = job(Place("x2", T4), Place("x1", A100))
    resumption.load(state)
    assert controller.plan.batch_sizes == (3, 9)
