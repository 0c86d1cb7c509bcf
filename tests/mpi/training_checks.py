"""What is learned does not depend on the plan. Run on 1, 2 and 3 ranks."""

from __future__ import annotations

from itertools import chain

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.sampling import EpochOrder, step_batch_sizes
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
    weights_of_all_ranks,
)
from tests.mpi.together import global_batch

B = 16


def check_uneven_plan_equals_one_process():
    arrays = images(80)
    balancer = hvd.Balancer(B, hvd.strategies.static(some_plans(B)[0]))
    net = model(seed=1 + hvd.rank())  # Rank 0's weights are broadcast before the first step.
    compile_model(net, sgd(balancer))
    history = fit(net, balancer, balancer.dataset(arrays, shuffle_seed=SEED)).history
    expected, expected_history = one_process_run(model(), arrays, B)
    assert balancer.plan.batch_sizes == some_plans(B)[0]
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, atol=1e-5, err_msg=name)


def check_changing_plans_and_partial_batches_equal_one_process():
    # 70 = 4 * 16 + 6 and 65 = 4 * 16 + 1: in the second, all ranks but one have no last sample.
    for num_samples in (70, 65):
        arrays = images(num_samples)
        balancer = hvd.Balancer(B, scripted(some_plans(B)))
        net = model()
        compile_model(net, sgd(balancer))
        history = fit(net, balancer, balancer.dataset(arrays, shuffle_seed=SEED), epochs=4).history
        expected, expected_history = one_process_run(model(), arrays, B, epochs=4)
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)
        for name, values in expected_history.items():
            np.testing.assert_allclose(history[name], values, atol=1e-5, err_msg=name)
        if hvd.size() > 1:
            assert len({tuple(plan) for plan in some_plans(B)[:3]}) > 1
        assert balancer.plan.batch_sizes == some_plans(B)[3]


def check_several_steps_in_one_call_equal_one_process():
    arrays = images(70)
    balancer = hvd.Balancer(B, scripted(some_plans(B)))
    net = model()
    compile_model(net, sgd(balancer), steps_per_execution=3)
    fit(net, balancer, balancer.dataset(arrays, shuffle_seed=SEED))
    np.testing.assert_allclose(flat(net), one_process_run(model(), arrays, B)[0], atol=1e-5)


def check_weights_are_equal_on_all_ranks():
    for strategy in ("dbs", "even"):
        balancer = hvd.Balancer(B, strategy)
        net = model(seed=1 + hvd.rank(), batch_norm=True)
        compile_model(net, sgd(balancer))
        fit(net, balancer, balancer.dataset(images(90), shuffle_seed=SEED))
        weights = weights_of_all_ranks(net)
        np.testing.assert_array_equal(weights, np.broadcast_to(weights[0], weights.shape))


def check_every_sample_once_and_the_same_global_batches():
    for num_samples in (64, 70, 65, 5):
        ids = np.arange(num_samples)
        balancer = hvd.Balancer(B, scripted(some_plans(B)))
        dataset = balancer.dataset(ids, shuffle_seed=SEED)
        even = hvd.Balancer(B, "even")
        even_dataset = even.dataset(ids, shuffle_seed=SEED)
        make_timings_usable(balancer)
        for one in (balancer, even):
            one.loop.begin_training()
        orders, plans = [], set()
        for epoch in range(3):
            for one in (balancer, even):
                one.loop.begin_epoch(epoch)
            plans.add(balancer.plan)
            assert len(dataset) == -(-num_samples // B) == len(even_dataset)
            seen = [global_batch(balancer, s, ids) for s, ids in enumerate(dataset)]
            same = [global_batch(even, s, ids) for s, ids in enumerate(even_dataset)]
            assert seen == same
            assert sorted(chain.from_iterable(seen)) == list(range(num_samples))
            orders.append(list(chain.from_iterable(seen)))
            for one in (balancer, even):
                one.loop.end_epoch()
        assert num_samples == 5 or orders[0] != orders[1]
        assert hvd.size() == 1 or len(plans) > 1
        for one in (balancer, even):
            one.loop.end_training()


def check_contiguous_shards_change_between_epochs_only():
    for num_samples in (64, 70, 5):
        ids = np.arange(num_samples)
        balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2)
        dataset = balancer.dataset(ids, shuffle_seed=SEED, layout="contiguous")
        make_timings_usable(balancer)
        balancer.loop.begin_training()
        plans = []
        for epoch in range(3):
            balancer.loop.begin_epoch(epoch)
            plans.append(balancer.loop.agreed_plan.batch_sizes)
            mine = []
            for step, part in enumerate(dataset):
                count = step_batch_sizes(step, plans[-1], num_samples)[hvd.rank()]
                assert balancer.loop.samples_in_step(step) == count
                mine += part[:count].numpy().tolist()
                balancer.loop.end_steps(step + 1)
            row = np.full(num_samples, -1)
            row[: len(mine)] = mine
            rows = hvd_collective().allgather(row)
            order = EpochOrder(num_samples, SEED, epoch).indices(0, num_samples)
            assert rows[rows >= 0].tolist() == order.tolist()  # Rank by rank, one piece each.
            balancer.loop.end_epoch()
        balancer.loop.end_training()
        assert num_samples == 5 or hvd.size() == 1 or len(set(plans)) > 1


def check_a_rank_without_samples_harms_nothing():
    class LastMean(keras.Layer):
        """Has a state that every batch changes, padding samples too."""

        def build(self, input_shape):
            self.mean = self.add_weight(shape=(), trainable=False)

        def call(self, inputs, training=None):
            if training:
                self.mean.assign(keras.ops.mean(inputs))
            return inputs

    # One sample in the last step.
    balancer = hvd.Balancer(B, hvd.strategies.static([1] * hvd.size()))
    net = keras.Sequential([keras.layers.Input((8, 8, 1)), *model().layers, LastMean()])
    compile_model(net, sgd(balancer))
    history = fit(net, balancer, balancer.dataset(images(B + 1), shuffle_seed=SEED)).history
    assert all(np.isfinite(value.numpy()).all() for value in net.weights)
    assert np.isfinite(history["loss"]).all()
    if hvd.size() == 1:
        return
    # What the last step leaves in the states of a rank without samples is taken back.
    idle = balancer.loop.samples_in_step(1) == 0
    assert sum(hvd_collective().allgather(np.array([idle]))[:, 0]) == hvd.size() - 1
    before = {}

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            values = [v.numpy() for v in net.non_trainable_weights + net.metrics_variables]
            if batch == 0:
                before["values"] = values
            elif idle:
                for value, expected in zip(values, before["values"], strict=True):
                    np.testing.assert_array_equal(value, expected)

    fit(net, balancer, balancer.dataset(images(B + 1), shuffle_seed=SEED), callbacks=[Watch()])
    assert before


def check_repeated_data_set_gets_a_new_order_each_epoch():
    seen = []
    balancer = hvd.Balancer(B, scripted(some_plans(B)))

    def note(x, y):
        def keep(ids):
            seen.append(ids.tolist())
            return ids

        return x, tf.ensure_shape(tf.numpy_function(keep, [y], tf.int64), [None])

    x, _ = images(70)
    dataset = balancer.dataset((x, np.arange(70) % 4), shuffle_seed=SEED).map(note)
    net = model()
    compile_model(net, sgd(balancer))
    seen.clear()
    fit(net, balancer, dataset.repeat(), steps_per_epoch=5)
    expected, _ = one_process_run(model(), (x, np.arange(70) % 4), B)
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)


def check_a_second_fit_keeps_the_plan():
    balancer = hvd.Balancer(B, scripted(some_plans(B)))
    dataset = balancer.dataset(images(70), shuffle_seed=SEED)
    net = model()
    compile_model(net, sgd(balancer))
    fit(net, balancer, dataset, epochs=2)
    plan = balancer.plan
    for _ in range(2):  # Outside of training nothing waits.
        assert sum(len(batch[1]) for batch in dataset) >= 1
    fit(net, balancer, dataset, epochs=1)
    assert plan.batch_sizes == some_plans(B)[1]
    assert balancer.plan.batch_sizes == some_plans(B)[2]


def check_averaged_metrics_do_not_need_the_same_names_on_all_ranks():
    class OnRankZero(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["only_rank_0"] = 3.0

    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, sgd(balancer))
    callbacks = [
        *([OnRankZero()] if hvd.rank() == 0 else []),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.DynamicBatchSizeCallback(balancer),
    ]
    dataset = balancer.dataset(images(64), shuffle_seed=SEED)
    logs = net.fit(dataset, verbose=0, shuffle=False, callbacks=callbacks).history
    losses = hvd_collective().allgather(np.array(logs["loss"]))
    assert len(set(losses[:, 0])) == 1
    assert logs.get("only_rank_0", [3.0]) == [3.0]


def check_plans_that_change_within_an_epoch_equal_one_process():
    for every, steps_per_execution in ((1, 1), (2, 1), (3, 2), (1, 4)):
        arrays = images(8 * B + 5)
        balancer = hvd.Balancer(B, scripted(some_plans(B)), every=every)
        net = model()
        compile_model(net, sgd(balancer), steps_per_execution=steps_per_execution)
        sizes = []

        def note(x, y, sizes=sizes):
            def keep(labels):
                sizes.append(len(labels))
                return labels

            return x, tf.ensure_shape(tf.numpy_function(keep, [y], tf.int64), [None])

        dataset = balancer.dataset(arrays, shuffle_seed=SEED).map(note)
        history = fit(net, balancer, dataset.prefetch(7), epochs=3).history
        expected, expected_history = one_process_run(model(), arrays, B)
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)
        for name, values in expected_history.items():
            np.testing.assert_allclose(history[name], values, atol=1e-5, err_msg=name)
        most = hvd_collective().allgather(np.array([len(set(sizes))])).max()
        assert hvd.size() == 1 or most > 3  # The plans did change.


def check_every_preset_equals_one_process():
    arrays = images(6 * B + 5)
    expected, _ = one_process_run(model(), arrays, B, epochs=2)
    for strategy in hvd.strategies.PRESETS:
        balancer = hvd.Balancer(B, strategy)
        net = model()
        compile_model(net, sgd(balancer))
        fit(net, balancer, balancer.dataset(arrays, shuffle_seed=SEED), epochs=2)
        np.testing.assert_allclose(flat(net), expected, atol=1e-5, err_msg=strategy)


def check_an_epoch_cut_short_goes_on_with_the_next():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch >= 2

    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=1)
    dataset = balancer.dataset(images(8 * B), shuffle_seed=SEED)
    net = model()
    compile_model(net, sgd(balancer))
    fit(net, balancer, dataset, epochs=5, callbacks=[Stop()])
    fit(net, balancer, dataset, epochs=1)
    weights = weights_of_all_ranks(net)
    np.testing.assert_array_equal(weights, np.broadcast_to(weights[0], weights.shape))
