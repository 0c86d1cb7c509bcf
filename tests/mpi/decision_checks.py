"""What all ranks know of a decision. Run on 3 ranks."""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from benchmarks.training.trainers import given_plan, set_plan
from hvd_dbs.balancer import session_of
from tests.mpi.problems import (
    SEED,
    compile_model,
    fit,
    flat,
    hvd_collective,
    images,
    model,
    one_process_run,
    scripted,
    sgd,
    some_plans,
)

B = 16


def check_all_ranks_know_when_the_next_decision_is_due():
    """Rank 0 stretches the cadence by what rounds cost; once, the others alone knew of that."""
    balancer = hvd.Balancer(B, "adaptive")
    dataset = balancer.dataset(images(20 * B), shuffle_seed=SEED)
    net = model()
    compile_model(net, sgd(balancer))
    for _ in range(2):
        fit(net, balancer, dataset, epochs=1)
        due = session_of(balancer).controller.steps_to_next
        assert len(set(hvd_collective().allgather(np.array([due]))[:, 0])) == 1


def check_all_ranks_learn_how_often_the_ranks_of_the_job_change():
    balancer = hvd.Balancer(B, "adaptive")
    before = session_of(balancer).controller.state_dict()["model"]["rates"]
    net = model()
    compile_model(net, sgd(balancer))
    fit(net, balancer, balancer.dataset(images(20 * B), shuffle_seed=SEED), epochs=1)
    states = [saved["model"]["rates"] for saved in balancer.gather_state_dict()["ranks"]]
    assert all(rates == states[0] != before for rates in states)


def check_all_prepare_more_steps_where_one_waits_for_its_data():
    arrays = images(40 * B)
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2)
    net = model()
    compile_model(net, sgd(balancer))

    def slow(x, y):
        def sleep(labels):
            time.sleep(0.05)
            return labels

        return x, tf.ensure_shape(tf.numpy_function(sleep, [y], tf.int64), [None])

    dataset = balancer.dataset(arrays, shuffle_seed=SEED)
    if hvd.rank() == hvd.size() - 1:
        dataset = dataset.map(slow, num_parallel_calls=8)
    fit(net, balancer, dataset.prefetch(8), epochs=1)
    np.testing.assert_allclose(
        flat(net), one_process_run(model(), arrays, B, epochs=1)[0], atol=1e-5
    )
    ahead = hvd_collective().allgather(np.array([balancer.loop.steps_ahead]))
    assert ahead.min() == ahead.max() > 1


def check_a_given_plan_is_trained_with_until_another_is_given():
    """As the search for the best static split in benchmarks/training has it."""
    balancer = hvd.Balancer(B, given_plan())
    dataset = balancer.dataset(images(4 * B), shuffle_seed=SEED)
    for first in (1, 2):
        others = hvd.size() - 1
        plan = (first, *[(B - first) // others] * (others - 1))
        plan = (*plan, B - sum(plan))
        set_plan(balancer, plan)
        sizes = []
        for epoch in balancer.epochs(dataset, 1):
            sizes = [len(x) for x, _ in epoch]
        assert sizes[:3] == [plan[hvd.rank()]] * 3
        assert balancer.plan.batch_sizes == plan
