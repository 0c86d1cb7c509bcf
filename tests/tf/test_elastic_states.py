"""States of elastic jobs: what is committed, gone back to, and agreed on."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic.worker import HostUpdateResult

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow.elastic as tf_elastic
from hvd_dbs.elastic import rendezvous
from hvd_dbs.tensorflow import elastic_state
from tests.tf.small_model import X, Y, make_model

pytestmark = pytest.mark.usefixtures("initialized")


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


def test_a_rank_that_is_lost_while_states_are_synced_leaves_them_whole(monkeypatch):
    """A rank once kept the variables of one commit beside the values of another."""
    variable = tf.Variable(1.0)
    state = tf_elastic.TensorFlowState([variable], step=1)

    def lose_rank(*arguments, **options):
        raise HorovodInternalError("a rank is gone")

    received = [np.array(2.0, np.float32)]
    with monkeypatch.context() as patch:
        patch.setattr(elastic_state, "broadcast_arrays", lambda values, root: received)
        patch.setattr(elastic_state.hvd, "broadcast_object", lose_rank)
        with pytest.raises(HorovodInternalError):
            state.sync()
    state.restore()
    assert (float(variable), state.step, state.num_commits) == (1.0, 1, 0)


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
