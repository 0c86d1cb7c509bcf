"""States of elastic jobs: what is committed, gone back to, and agreed on."""

from __future__ import annotations

import horovod.tensorflow as tf_hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic.worker import HostUpdateResult

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow.elastic as tf_elastic
from hvd_dbs.comm import collective
from hvd_dbs.comm.collective import AloneCollective
from hvd_dbs.elastic import rendezvous
from hvd_dbs.job.dispensable_ranks import DispensableRanks
from hvd_dbs.tensorflow.elastic_state import RankLeaves
from hvd_dbs.watchdog import crash_report

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def initialized():
    hvd.init()


def make_model(balancer=None):
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(hvd.DistributedOptimizer(optimizer, balancer=balancer), loss="mse")
    return model


def everything(model):
    return [v.numpy().copy() for v in [*model.weights, *model.optimizer.variables]]


def assert_same(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


def test_going_back_restores_weights_slots_and_values():
    model = make_model()
    model.fit(X, Y, batch_size=8, verbose=0)
    state = hvd.elastic.KerasState(model, epoch=1, history=[1])
    before = everything(model)
    model.fit(X, Y, batch_size=8, verbose=0)
    state.epoch, state.optional = 2, "not tracked"
    state.history.append(2)
    state.restore()
    assert_same(everything(model), before)
    assert (state.epoch, state.history) == (1, [1])
    state.history.append(3)
    state.commit()
    state.history.append(4)
    state.restore()
    assert state.history == [1, 3]


def test_a_state_of_plain_variables():
    variable = tf.Variable([1.0, 2.0])
    state = tf_elastic.TensorFlowState([variable], step=3)
    variable.assign([5.0, 6.0])
    state.step = 9
    state.sync()  # All ranks go on from the last commit.
    assert variable.numpy().tolist() == [1.0, 2.0]
    assert state.step == 3


def train_losing_ranks(failures, batches_per_commit=1, commit_comes_first=False):
    """Weights and state after three epochs in which a rank is lost after some of the steps."""
    balancer = hvd.Balancer(global_batch_size=4, strategy="even")
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model.compile(hvd.DistributedOptimizer(optimizer, balancer=balancer), loss="mse")
    dataset = balancer.dataset((X, Y), shuffle_seed=5)
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    steps = []

    class LoseRanks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append(batch)
            if len(steps) in failures:
                raise HorovodInternalError("a rank is gone")

    @hvd.elastic.run
    def train(state):
        commit = hvd.elastic.CommitStateCallback(state, batches_per_commit)
        others = [
            LoseRanks(),
            hvd.callbacks.DynamicBatchSizeCallback(balancer),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ]
        callbacks = [commit, *others] if commit_comes_first else [*others, commit]
        model.fit(dataset, epochs=3, initial_epoch=state.epoch, verbose=0, callbacks=callbacks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "has_store", lambda: True)
        patch.setattr(rendezvous, "rejoin", lambda: None)
        train(state)
    return model.get_weights(), state, len(steps)


@pytest.fixture(scope="module")
def undisturbed():
    hvd.init()
    return train_losing_ranks(failures=[])[0]


@pytest.mark.parametrize("batches_per_commit", [1, 2])
@pytest.mark.parametrize("commit_comes_first", [False, True])
def test_the_position_is_that_of_the_weights(batches_per_commit, commit_comes_first, undisturbed):
    """Whatever the order of callbacks, each batch is learned from once."""
    weights, state, num_steps = train_losing_ranks(
        # In mid-epoch, in the last step of an epoch, in the first of one.
        [3, 9, 12, 15, 16, 21],
        batches_per_commit,
        commit_comes_first,
    )
    assert (state.epoch, state.batch) == (3, 0)
    assert num_steps >= 18 + (0 if commit_comes_first else 6 - batches_per_commit)
    for mine, expected in zip(weights, undisturbed, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5)


@pytest.mark.parametrize("continues", [True, False])
def test_epochs_are_counted_from_the_state_or_from_0(continues):
    model = make_model()
    state = hvd.elastic.KerasState(model, epoch=2, batch=0)
    first = state.epoch if continues else 0
    model.fit(
        *(X, Y),
        initial_epoch=first,
        epochs=first + 3,
        verbose=0,
        batch_size=8,
        callbacks=[
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ],
    )
    assert (state.epoch, state.batch) == (5, 0)


def test_hosts_that_come_interrupt_at_the_next_commit():
    state = tf_elastic.TensorFlowState([tf.Variable(0.0)])
    state.commit()
    state.on_hosts_updated(1, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    state.commit()


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (HorovodInternalError("x"), True),
        (tf.errors.UnknownError(None, None, "Horovod has been shut down. This was"), True),
        (tf.errors.UnknownError(None, None, "[/b/gloo/transport/tcp/pair.cc:589] Read"), True),
        (tf.errors.AbortedError(None, None, "ncclCommAbort: unhandled NCCL error"), True),
        (tf.errors.UnknownError(None, None, "KeyError: 'label'"), False),
        (tf.errors.UnknownError(None, None, "KeyError: 'igloo.jpg'"), False),
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_slow_ranks": True}, "drop_slow_ranks=True was given with min_ranks=None"),
        ({"min_ranks": 2}, "drop_slow_ranks=False was given with min_ranks=2"),
        ({"drop_slow_ranks": True, "min_ranks": 0}, "min_ranks=0 must be at least 1"),
        ({"drop_slow_ranks": True, "min_ranks": 1}, "was given without a balancer"),
    ],
)
def test_leaving_needs_a_balancer_and_a_least_number_of_ranks(options, message):
    with pytest.raises(ValueError, match=message):
        hvd.elastic.KerasState(make_model(), **options)


def test_what_cannot_be_a_state_is_refused():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(), loss="mse")
    with pytest.raises(ValueError, match="no weights yet"):
        hvd.elastic.KerasState(model)
    with pytest.raises(ValueError, match="global_batch='both' is unknown"):
        hvd.elastic.KerasState(make_model(), global_batch="both")
    with pytest.raises(TypeError, match=r"KerasState\(model, balancer="):
        hvd.elastic.KerasState(make_model(), hvd.Balancer(8))
    with pytest.raises(ValueError, match="batches_per_commit=0"):
        hvd.elastic.CommitStateCallback(None, 0)


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
