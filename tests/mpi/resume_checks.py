"""Training that was saved goes on as if nothing had been. Run on 3 ranks."""

from __future__ import annotations

import json
import time
import warnings
from itertools import chain

import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow.elastic as tf_elastic
from hvd_dbs.elastic import rendezvous
from hvd_dbs.sampling import EpochOrder
from hvd_dbs.tensorflow import DistributedGradientTape
from tests.mpi.problems import (
    SEED,
    compile_model,
    fit,
    flat,
    hvd_collective,
    images,
    make_timings_usable,
    model,
    one_process_run,
    scripted,
    sgd,
    some_plans,
)
from tests.mpi.together import global_batch, shared

B = 16


class StopAt(keras.callbacks.Callback):
    """Ends the training when so many steps of an epoch are over."""

    def __init__(self, epoch, steps):
        super().__init__()
        self.at, self.epoch = (epoch, steps), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch + 1) == self.at:
            self.model.stop_training = True


def check_training_goes_on_in_the_midst_of_an_epoch():
    arrays = images(8 * B + 5)
    expected, _ = one_process_run(model(), arrays, B)
    ids = (arrays[0], np.arange(len(arrays[1])))
    costs = np.random.default_rng(5).lognormal(size=len(arrays[1]))
    for every, in_call, steps, cost in (
        ("epoch", 1, 3, None),
        (1, 2, 4, costs),
        ("epoch", 2, 2, None),
    ):
        first = hvd.Balancer(B, scripted(some_plans(B)), every=every)
        net = model()
        compile_model(net, sgd(first), steps_per_execution=in_call)
        dataset = first.dataset(arrays, shuffle_seed=SEED)
        fit(net, first, dataset, callbacks=[StopAt(1, steps)])
        state = json.loads(json.dumps(first.gather_state_dict(), allow_nan=False))
        assert (state["epoch"], state["used"]) == (1, [[0, steps * B]])

        # Without the last rank's entry, the state is that of a job with one rank less.
        for ranks in {hvd.size(), max(hvd.size() - 1, 1)}:
            saved = {**state, "ranks": state["ranks"][:ranks]}
            second = hvd.Balancer(B, scripted(some_plans(B)), every=every)
            second.load_state_dict(saved)
            if ranks == hvd.size():
                assert second.plan == first.plan
                assert second.gather_state_dict()["ranks"] == state["ranks"]
            other = model()
            compile_model(other, sgd(second), steps_per_execution=in_call)
            other.optimizer.build(other.trainable_variables)
            other.set_weights(net.get_weights())
            for variable, value in zip(
                other.optimizer.variables, net.optimizer.variables, strict=True
            ):
                variable.assign(value)
            dataset = second.dataset(arrays, shuffle_seed=SEED, cost=cost)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # "Your input ran out of data".
                history = fit(other, second, dataset)
            assert history.epoch == [1, 2]
            np.testing.assert_allclose(flat(other), expected, atol=1e-5)
            assert second.cursor.epoch == 3

        seen = []
        reader = hvd.Balancer(B // 2 + 1, scripted(some_plans(B // 2 + 1)))
        rest = reader.dataset(ids[1], shuffle_seed=SEED)
        reader.load_state_dict(state)
        reader.loop.begin_training()
        for epoch, num_left in ((1, len(ids[1]) - steps * B), (2, len(ids[1]))):
            reader.loop.begin_epoch(epoch)
            seen = [global_batch(reader, s, batch) for s, batch in enumerate(rest)]
            assert len(seen) == -(-num_left // (B // 2 + 1))
            order = EpochOrder(len(ids[1]), SEED, epoch).indices(0, len(ids[1]))
            assert list(chain.from_iterable(seen)) == order[-num_left:].tolist()
            reader.loop.end_epoch()
        reader.loop.end_training()


def check_a_saved_plan_obeys_the_bounds_of_the_balancer_it_is_loaded_into():
    size = hvd.size()
    saved = hvd.Balancer(8 * size, "dbs").gather_state_dict()
    for rank, entry in enumerate(saved["ranks"]):
        entry["batch_size"] = 8 + (rank == 0) * (size - 1) - (rank > 0)
    free = hvd.Balancer(8 * size, "dbs")
    free.load_state_dict(saved)
    assert free.plan.batch_sizes == (7 + size, *(size - 1) * [7])
    bounded = hvd.Balancer(8 * size, "dbs", max_batch_size=8)
    bounded.load_state_dict(saved)
    assert bounded.plan.batch_sizes == size * (8,)
    # A split that never changes is the balancer's own.
    told = hvd.Balancer(8 * size, hvd.strategies.static(range(1, size + 1)))
    other = hvd.Balancer(8 * size, hvd.strategies.static(range(size, 0, -1)))
    plan = other.plan
    other.load_state_dict(told.gather_state_dict())
    assert other.plan == plan


def check_a_state_is_loaded_after_the_round_of_an_interrupted_training():
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=1)
    make_timings_usable(balancer)
    balancer.dataset(np.arange(5 * B))
    state = balancer.gather_state_dict()
    balancer.loop.begin_training()
    balancer.loop.begin_epoch(0)
    for step in (1, 2):  # The first step of an epoch is not measured.
        balancer.loop.end_steps(step)
    balancer.load_state_dict(state)
    balancer.loop.begin_training()
    plans = hvd_collective().allgather(np.array(balancer.plan.batch_sizes))
    np.testing.assert_array_equal(
        plans, [[one["batch_size"] for one in state["ranks"]]] * hvd.size()
    )
    balancer.loop.end_training()


def check_states_are_alike_on_all_ranks_while_rank_0_alone_knows_the_next_plan():
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=1)
    make_timings_usable(balancer)
    balancer.dataset(np.arange(5 * B))
    balancer.loop.begin_training()
    balancer.loop.begin_epoch(0)
    for step in (1, 2):
        balancer.loop.end_steps(step)
    limit = time.monotonic() + 60
    while hvd.rank() == 0 and balancer.plan == balancer.loop.agreed_plan and hvd.size() > 1:
        assert time.monotonic() < limit
        time.sleep(0.01)
    state = balancer.gather_state_dict()
    assert state == json.loads(shared(json.dumps(state)))
    for one in (balancer.state_dict(), state):  # Each rank's own, and the same on all.
        other = hvd.Balancer(B, scripted(some_plans(B)), every=1)
        other.load_state_dict(one)
        assert sum(rank["batch_size"] for rank in one["ranks"]) == B
    balancer.loop.end_training()


def check_a_loop_of_ones_own_goes_on_from_the_latest_commit_of_any_rank():
    """Ranks are lost after some of the steps; the last rank has made one commit more by then."""
    rank, size = hvd.rank(), hvd.size()
    rows, starts = 2.0 + np.arange(size), np.array([1.0, -2.0], np.float32)
    weights = tf.Variable(starts + rank)  # Those of rank 0 are everybody's before the first step.
    velocity = tf.Variable(tf.zeros_like(weights))
    state = tf_elastic.TensorFlowState([weights, velocity], step=0)
    taken = []

    @tf_elastic.run
    def train(state):
        while state.step < 8:
            with DistributedGradientTape(tf.GradientTape(), weight=rows[rank]) as tape:
                loss = (1.0 + rank) * tf.reduce_sum(weights**2)
            velocity.assign(0.9 * velocity + tape.gradient(loss, [weights])[0])
            weights.assign_sub(0.05 * velocity)
            state.step += 1
            taken.append(state.step)
            if len(taken) in (3, 6):
                if rank == size - 1 and len(taken) == 3:
                    state.save()
                raise HorovodInternalError("a rank is gone")
            if state.step % 2 == 0:
                state.commit()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "has_store", lambda: True)
        patch.setattr(rendezvous, "rejoin", lambda: None)
        train(state)
    # The commit of step 3 holds for all; step 6 is taken again, from the commit of step 4.
    assert taken == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8]
    v, w = 0.0, starts.astype(float)
    for _ in range(8):
        v = 0.9 * v + 2.0 * w * np.dot(rows, 1.0 + np.arange(size)) / rows.sum()
        w = w - 0.05 * v
    np.testing.assert_allclose(weights.numpy(), w, rtol=1e-4)
    everywhere = hvd_collective().allgather(np.append(weights.numpy(), velocity.numpy()))
    np.testing.assert_array_equal(everywhere, everywhere[[0] * size])
