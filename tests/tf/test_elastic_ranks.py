"""Ranks of elastic jobs that come, go and die: which errors, commits and steps they meet."""

from __future__ import annotations

import horovod.tensorflow as tf_hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow.elastic as tf_elastic
from hvd_dbs.balancer import session_of
from hvd_dbs.comm import collective
from hvd_dbs.comm.collective import AloneCollective
from hvd_dbs.job.dispensable_ranks import DispensableRanks
from hvd_dbs.tensorflow.elastic_state import RankLeaves
from hvd_dbs.watchdog import crash_report
from tests.tf.small_model import X, Y, make_model

pytestmark = pytest.mark.usefixtures("initialized")


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (HorovodInternalError("x"), True),
        (tf.errors.UnknownError(None, None, "Horovod has been shut down. This was"), True),
        (tf.errors.UnknownError(None, None, "[/b/gloo/transport/tcp/pair.cc:589] Read"), True),
        (tf.errors.AbortedError(None, None, "ncclCommAbort: unhandled NCCL error"), True),
        (tf.errors.UnknownError(None, None, "KeyError: 'label'"), False),
        (tf.errors.UnknownError(None, None, "[enforce fail at /gloo/a.h:27] i < 2"), True),
        (tf.errors.UnknownError(None, None, "KeyError: 'igloo.jpg'"), False),
        (tf.errors.UnknownError(None, None, "OSError: no /home/me/gloo/train.npy"), False),
        (tf.errors.UnknownError(None, None, "OSError: no nccl-tests/of_nccl/2.npy"), False),
        (tf.errors.FailedPreconditionError(None, None, "Horovod: mismatched shapes"), False),
        (ValueError("gloo"), False),
    ],
)
def test_errors_that_mean_a_lost_rank(error, is_lost):
    assert crash_report.is_lost_peer(error) is is_lost


def test_an_error_of_this_rank_is_raised():
    @hvd.elastic.run
    def train(state):
        raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        train(tf_elastic.TensorFlowState([tf.Variable(0.0)]))


def test_a_lost_rank_ends_a_job_whose_ranks_do_not_come_and_go():
    """It has no launcher to ask for a place, and the launcher ends it."""

    @hvd.elastic.run
    def train(state):
        raise HorovodInternalError("a rank is gone")

    with pytest.raises(HorovodInternalError, match="a rank is gone"):
        train(tf_elastic.TensorFlowState([tf.Variable(0.0)]))


def test_a_balancer_of_an_elastic_job_connects_when_the_ranks_meet(monkeypatch):
    """Its ranks may be training already: a rank that joins has nobody to connect to yet."""
    connected = []
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    monkeypatch.setattr(
        collective, "connect", lambda name: connected.append(name) or AloneCollective()
    )
    balancer = hvd.Balancer(global_batch_size=8)
    assert connected == []
    balancer.rejoin(balancer.state_dict(), 8)
    assert connected == ["balancer"]
    monkeypatch.setattr(tf_hvd, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match="Horovod is not initialized"):
        hvd.Balancer(global_batch_size=8)


def test_a_step_that_did_not_fit_bounds_the_model_that_it_was_of(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    balancer = hvd.Balancer(global_batch_size=8)
    balancer.rejoin(balancer.state_dict(), 8)
    dataset = balancer.dataset((X, Y))

    def most_of(model):
        callback = hvd.callbacks.DynamicBatchSizeCallback(balancer)
        model.fit(dataset, verbose=0, shuffle=False, callbacks=[callback])
        return session_of(balancer).controller.bounds.maximum

    large, small = make_model(balancer), make_model(balancer)
    large.add(keras.layers.Dense(1))
    assert most_of(large) == (None,)
    assert session_of(balancer).memory.note_lack(20) == 18
    balancer.rejoin(balancer.state_dict(), 8)
    assert most_of(large) == (18,)
    balancer.resize(20)
    dataset = balancer.dataset((X, Y))
    assert most_of(small) == (None,)


def slow_job(monkeypatch, **options):
    """A state that lets ranks leave, after rounds that show that the job is faster without 1, 2."""
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    monkeypatch.setenv("HOROVOD_HOSTNAME", "node1")
    balancer = hvd.Balancer(global_batch_size=8)
    variable = tf.Variable(0.0)
    options = {"min_ranks": 1, **options}
    state = tf_elastic.TensorFlowState(
        [variable], balancer=balancer, drop_slow_ranks=True, **options
    )
    state.departures.due = DispensableRanks((1, 2), 1, 1, 0.7, 0.1)
    return state


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_ranks_leave_at_a_commit_by_what_rank_0_knows(rank, monkeypatch, caplog):
    state = slow_job(monkeypatch)
    if rank:
        state.departures.due = None
    monkeypatch.setattr(tf_hvd, "rank", lambda: rank)
    monkeypatch.setattr(tf_hvd, "size", lambda: 3)
    leave = np.array([2, 0, 0], np.uint8)
    monkeypatch.setattr(tf_hvd, "allgather", lambda flags, name: leave)
    sent = []
    monkeypatch.setattr(
        tf_hvd, "broadcast", lambda mask, root, name: sent.append(mask) or tf.constant([0, 1, 1])
    )
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert isinstance(caught.value, RankLeaves) == (rank > 0)
    if rank == 0:
        assert sent[0].numpy().tolist() == [0, 1, 1]
        assert "the job goes on without" in caplog.text


def test_a_rank_that_leaves_ends_by_an_exit_code_that_the_launcher_takes_for_a_loss(monkeypatch):
    monkeypatch.setattr(tf_elastic.hvd, "shutdown", lambda: None)
    monkeypatch.setattr(crash_report, "end_in_time", lambda: None)

    @hvd.elastic.run
    def train(state):
        raise RankLeaves

    with pytest.raises(SystemExit) as caught:
        train(tf_elastic.TensorFlowState([tf.Variable(0.0)]))
    assert caught.value.code == 75


def test_a_job_that_is_not_elastic_says_that_no_rank_can_leave(caplog):
    balancer = hvd.Balancer(global_batch_size=8)
    state = hvd.elastic.KerasState(make_model(balancer), drop_slow_ranks=True, min_ranks=1)
    assert hvd.elastic.run(lambda state: "trained")(state) == "trained"
    assert "drop_slow_ranks=True has no effect" in caplog.text


def test_fit_outside_of_run_is_refused_in_an_elastic_job(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    balancer = hvd.Balancer(global_batch_size=8)
    model = make_model(balancer)
    with pytest.raises(RuntimeError, match=r"Call fit in a function decorated with hvd\.elastic"):
        model.fit(
            balancer.dataset((X, Y)),
            verbose=0,
            callbacks=[hvd.callbacks.DynamicBatchSizeCallback(balancer)],
        )


def test_steps_count_the_ranks_that_there_are_not_those_that_traced_them(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    weight = keras.Variable(tf.zeros(2))
    optimizer.build([weight])

    @tf.function
    def step(gradient):
        optimizer.apply([gradient], [weight])
        with hvd.global_batch() as batch:
            return batch.total

    with monkeypatch.context() as patch:
        patch.setattr(tf_hvd.ProcessSet, "size", lambda process_set: 4)
        patch.setattr(tf_hvd, "size", lambda: 4)
        step.get_concrete_function(tf.TensorSpec([2]))
    assert float(step(tf.ones(2))) == 1.0
    np.testing.assert_array_equal(weight, [-1.0, -1.0])


@pytest.mark.parametrize("is_elastic", [False, True])
def test_one_rank_synchronizes_batch_normalization_where_others_may_come(is_elastic, monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", str(int(is_elastic)))
    layer = hvd.layers.SyncBatchNormalization()
    layer.build([None, 3])
    step = tf.function(lambda inputs: layer(inputs, training=True))
    operations = step.get_concrete_function(tf.TensorSpec([4, 3])).graph.get_operations()
    assert any(one.type == "HorovodAllreduce" for one in operations) == is_elastic
