"""A job goes on by kind of device where its hosts have other names."""

from __future__ import annotations

import json

import pytest

from hvd_dbs.balancing import Bounds, Controller, Plan, strategies
from hvd_dbs.balancing.place import Place
from hvd_dbs.comm.collective import AssumedCollective
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.job.loop import TrainingLoop
from hvd_dbs.job.resumption import Resumption

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


def job(*places, global_batch_size=12):
    """The controller of rank 0 of 2, and what it goes on with."""
    collective = AssumedCollective(0, 2)
    controller = Controller(strategies.dbs(), global_batch_size, Bounds.of(2, minimum=1))
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


@pytest.mark.parametrize("is_made_first", [False, True])
def test_an_endless_stream_goes_on_after_as_many_steps(is_made_first):
    """By another global batch size; once, that was taken for another data set."""

    def stage_of(global_batch_size):
        stage = IndexStage(5 * global_batch_size, None, 0, (global_batch_size // 2,) * 2)
        stage.is_endless = True
        return stage

    places = Place("x1"), Place("x2")
    _, resumption = job(*places)
    resumption.read_from(stage_of(12))
    state = resumption.state().plain() | {"epoch": 1, "used": [[0, 24]]}
    _, resumption = job(*places, global_batch_size=30)
    stage = stage_of(30)
    if is_made_first:
        resumption.read_from(stage)
    resumption.load(json.loads(json.dumps(state)))
    if not is_made_first:
        resumption.read_from(stage)
    assert (stage.num_steps_in(1), stage.num_steps_in(2)) == (3, 5)
