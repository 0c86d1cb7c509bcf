"""What is learned does not depend on the plan. Run on 1, 2 and 3 ranks."""

from __future__ import annotations

import json
import tempfile
import warnings
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
import hvd_dbs.tensorflow as hvd_tensorflow
from hvd_dbs.cluster import collective as job
from hvd_dbs.ops import native
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
    write_examples,
)

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


def check_a_loop_of_ones_own_equals_one_process():
    """As docs/own_loops.md shows it."""
    arrays = images(70)
    balancer = hvd.Balancer(B, scripted(some_plans(B)), every=2)
    net = model(seed=1 + hvd.rank())
    hvd_tensorflow.broadcast_variables([v.value for v in net.variables], root_rank=0)
    optimizer, loss = sgd(balancer), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    dataset = balancer.dataset(arrays, shuffle_seed=SEED)

    @tf.function(reduce_retracing=True)
    def train_step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, net(x, training=True)) + sum(net.losses)
        gradients = tape.gradient(value, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

    plans = set()
    balancer.loop.begin_training()
    for epoch in range(3):
        balancer.loop.begin_epoch(epoch)
        for step, (x, y) in enumerate(dataset, start=1):
            train_step(x, y)
            plans.add(balancer.loop.agreed_plan)
            balancer.loop.end_steps(step)
        balancer.loop.end_epoch()
    balancer.loop.end_training()
    assert len(plans) > 1 or hvd.size() == 1
    expected, _ = one_process_run(model(), arrays, B)
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)


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


def check_windows_cut_by_cost_equal_one_process():
    costs = np.random.default_rng(5).lognormal(size=70)
    # 70 = 4 * 16 + 6 and 65 = 4 * 16 + 1: in the second, all ranks but one have no last sample.
    for num_samples, every, in_call in ((70, "epoch", 1), (65, 2, 1), (70, 1, 3)):
        arrays = images(num_samples)
        balancer = hvd.Balancer(B, scripted(some_plans(B)), every=every)
        net = model()
        compile_model(net, sgd(balancer), steps_per_execution=in_call)
        dataset = balancer.dataset(arrays, shuffle_seed=SEED, cost=costs[:num_samples])
        seen = []
        counts = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda step, logs, loop=balancer.loop, seen=seen: seen.append(
                (loop.samples_in_step(step), loop._stage.batch_sizes_in(step)[hvd.rank()])
            )
        )
        work, drain = [], balancer.clock.drain

        def note(drain=drain, work=work):
            times = drain()
            work.extend(times.num_samples)
            return times

        balancer.clock.drain = note
        history = fit(net, balancer, dataset, callbacks=[counts]).history
        assert np.mod(work, 1.0).any()  # What is measured is cost.
        expected, expected_history = one_process_run(model(), arrays, B)
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)
        if in_call == 1:
            for name, values in expected_history.items():
                np.testing.assert_allclose(history[name], values, atol=1e-5, err_msg=name)
        assert hvd.size() == 1 or any(count != planned for count, planned in seen)


def check_costs_that_one_rank_cannot_use_are_an_error_of_all():
    balancer = hvd.Balancer(B, "even")
    x = np.arange(40)
    last = hvd.rank() == hvd.size() - 1
    with pytest.raises(ValueError, match=r"cost\[3\] is -1.0"):
        balancer.dataset(x, cost=np.where(last & (x == 3), -1.0, 1.0))
    for options, text in (
        ({"training": False}, "an evaluation is cut by the number of samples"),
        ({"layout": "contiguous"}, 'use layout="windows"'),
    ):
        with pytest.raises(ValueError, match=text):
            balancer.dataset(x, cost=x, **options)
    endless = hvd.data.Stream(tf.data.Dataset.counter(), steps_per_epoch=3)
    with pytest.raises(ValueError, match="endless stream"):
        balancer.dataset(endless, cost=x)
    with pytest.raises(ValueError, match="Leave out one of them"):
        hvd.Balancer(2 * B * hvd.size(), "even", multiple_of=2).dataset(x, cost=x)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="cost differs between ranks"):
            balancer.dataset(x, cost=x + last)


def check_records_in_files_equal_one_process():
    x, y = arrays = images(70)
    features = {
        "image": tf.io.FixedLenFeature([8, 8, 1], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(batch):
        samples = tf.io.parse_example(batch, features)
        return samples["image"], samples["label"]

    with _shared_folder() as folder:
        if hvd.rank() == 0:
            borders = [0, 23, 23, 24, 70]  # Odd lengths, none, and a single one.
            for first, last in pairwise(borders):
                write_examples(
                    folder / f"images-{first}-{last}.tfrecord", x[first:last], y[first:last]
                )
        _meet()
        # All ranks make the indexes of the same files at once.
        source = hvd.data.TFRecords(folder / "*.tfrecord", parse)
        balancer = hvd.Balancer(B, scripted(some_plans(B)))
        net = model()
        compile_model(net, sgd(balancer))
        history = fit(net, balancer, balancer.dataset(source, shuffle_seed=SEED)).history

        blocks = hvd.data.TFRecords(folder / "*.tfrecord", parse, block_size=5)
        even = hvd.Balancer(B, "even")
        first = next(iter(even.dataset(blocks, shuffle_seed=SEED)))[0].numpy()
        start = sum(even.plan.batch_sizes[: hvd.rank()])
        rows = EpochOrder(70, SEED, 0, 5).indices(start, len(first))
        np.testing.assert_array_equal(first, x[rows])
    expected, expected_history = one_process_run(model(), arrays, B)
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, atol=1e-5, err_msg=name)


def check_a_rank_without_the_native_library_learns_the_same_as_the_others():
    """It reads and packs by NumPy and TensorFlow, and so do all where they must do alike."""
    if hvd.size() == 1 or native.library() is None:
        pytest.skip("needs two kinds of ranks")
    library = native.library()
    with pytest.MonkeyPatch.context() as patch:
        if hvd.rank() == hvd.size() - 1:
            patch.setenv("HVD_DBS_NATIVE", "0")
            assert native.library() is None
        native.forget_agreement()
        check_records_in_files_equal_one_process()
        assert native.agreed() is None
    native.forget_agreement()
    assert native.agreed() is library


def check_files_that_one_rank_cannot_read_are_an_error_of_all():
    with _shared_folder() as folder:
        if hvd.rank() == 0:
            for name in ("whole", "cut"):
                write_examples(folder / name, *images(3))
            with (folder / "cut").open("r+b") as file:
                file.truncate((folder / "cut").stat().st_size - 5)
        _meet()
        balancer = hvd.Balancer(B)
        last = hvd.size() - 1
        mine = folder / ("cut" if hvd.rank() == last else "whole")
        with pytest.raises(ValueError, match=r"cut: the record at offset \d+ is cut off"):
            balancer.dataset(hvd.data.TFRecords(mine))
        if last > 0:
            mine = folder / "whole"
            if hvd.rank() == last:
                mine = folder / "other"
                write_examples(mine, *images(3))
            with pytest.raises(ValueError, match="data set differs between ranks"):
                balancer.dataset(hvd.data.TFRecords(mine))


@contextmanager
def _shared_folder():
    """A folder that all ranks know, and that is gone when all are done with it."""
    with tempfile.TemporaryDirectory() as mine:
        yield Path(job.allgather_text(hvd_collective(), mine)[0])
        _meet()


def _meet():
    hvd_collective().allgather(np.zeros(1))


def check_adam_with_clipping_and_decay_equals_one_process():
    def adam():
        return keras.optimizers.AdamW(0.01, weight_decay=0.01, global_clipnorm=0.5)

    arrays = images(70)
    balancer = hvd.Balancer(B, scripted(some_plans(B)))
    net = model()
    compile_model(net, hvd.DistributedOptimizer(adam(), balancer=balancer))
    fit(net, balancer, balancer.dataset(arrays, shuffle_seed=SEED))
    expected, _ = one_process_run(model(), arrays, B, adam())
    np.testing.assert_allclose(flat(net), expected, atol=1e-5)


def check_sparse_gradients_equal_one_process():
    def embedding():
        keras.utils.set_random_seed(1)
        return keras.Sequential(
            [
                keras.layers.Input((5,), dtype="int32"),
                keras.layers.Embedding(50, 8),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(4),
            ]
        )

    words = np.random.default_rng(3).integers(0, 50, (70, 5)).astype(np.int32)
    arrays = (words, images(70)[1])
    for sparse_as_dense in (False, True):
        balancer = hvd.Balancer(B, scripted(some_plans(B)))
        net = embedding()
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.5, momentum=0.9),
            balancer=balancer,
            sparse_as_dense=sparse_as_dense,
        )
        compile_model(net, optimizer)
        fit(net, balancer, balancer.dataset(arrays, shuffle_seed=SEED))
        reference = keras.optimizers.SGD(0.5, momentum=0.9)
        expected, _ = one_process_run(embedding(), arrays, B, reference)
        np.testing.assert_allclose(flat(net), expected, atol=1e-5)


def check_weights_are_equal_on_all_ranks():
    for strategy in ("dbs", "even"):
        balancer = hvd.Balancer(B, strategy)
        net = model(seed=1 + hvd.rank(), batch_norm=True)
        compile_model(net, sgd(balancer))
        fit(net, balancer, balancer.dataset(images(90), shuffle_seed=SEED))
        weights = weights_of_all_ranks(net)
        np.testing.assert_array_equal(weights, np.broadcast_to(weights[0], weights.shape))


def check_optimizer_without_a_balancer_averages_as_horovod_does():
    x, y = images(48)
    net = model(seed=1 + hvd.rank())
    compile_model(net, sgd(None))
    mine = slice(hvd.rank(), None, hvd.size())
    local = 48 // hvd.size()
    net.fit(
        x[mine],
        y[mine],
        batch_size=local,
        epochs=3,
        verbose=0,
        shuffle=False,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    whole = model()
    compile_model(whole, keras.optimizers.SGD(0.05, momentum=0.9))
    for _ in range(3):
        whole.train_on_batch(x, y)
    np.testing.assert_allclose(flat(net), flat(whole), atol=1e-5)


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
            seen = [_global_batch(balancer, s, ids) for s, ids in enumerate(dataset)]
            same = [_global_batch(even, s, ids) for s, ids in enumerate(even_dataset)]
            assert seen == same
            assert sorted(chain.from_iterable(seen)) == list(range(num_samples))
            orders.append(list(chain.from_iterable(seen)))
            for one in (balancer, even):
                one.loop.end_epoch()
        assert num_samples == 5 or orders[0] != orders[1]
        assert hvd.size() == 1 or len(plans) > 1
        for one in (balancer, even):
            one.loop.end_training()


def _global_batch(balancer, step, ids):
    """The ids of all ranks in a step, in order, without those that only fill in."""
    count = balancer.loop.samples_in_step(step)
    row = np.full(2 * B, -1)
    row[:count] = ids.numpy()[:count]
    assert len(ids) == max(count, 1) or count == 0
    rows = hvd_collective().allgather(row)
    counts = step_batch_sizes(step, balancer.plan.batch_sizes, balancer.loop._num_samples)
    return [i for row, count in zip(rows, counts, strict=True) for i in row[:count].tolist()]


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
    # One sample in the last step, and statistics that a fill-in batch would move.
    balancer = hvd.Balancer(B, hvd.strategies.static([1] * hvd.size()))
    net = model(batch_norm=True)
    compile_model(net, sgd(balancer))
    history = fit(net, balancer, balancer.dataset(images(B + 1), shuffle_seed=SEED)).history
    assert all(np.isfinite(value.numpy()).all() for value in net.weights)
    assert np.isfinite(history["loss"]).all()
    if hvd.size() == 1:
        return
    # What the last step leaves in the statistics of a rank without samples is taken back: a run
    # over the first, full global batch alone ends with the same ones.
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


def check_all_ranks_know_when_the_next_decision_is_due():
    """Rank 0 stretches the cadence by what rounds cost; once, the others alone knew of that."""
    balancer = hvd.Balancer(B, "adaptive")
    dataset = balancer.dataset(images(20 * B), shuffle_seed=SEED)
    net = model()
    compile_model(net, sgd(balancer))
    for _ in range(2):
        fit(net, balancer, dataset, epochs=1)
        due = balancer._controller.steps_to_next
        assert len(set(hvd_collective().allgather(np.array([due]))[:, 0])) == 1


def check_mixed_precision_skips_the_same_steps_on_all_ranks():
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        balancer = hvd.Balancer(B, hvd.strategies.static([1] * hvd.size()))
        x, y = images(64)
        x[:, 0, 0, 0] = 1.0
        x[5] = 6e4  # One sample overflows, on the one rank that has it.
        net = model()
        compile_model(net, sgd(balancer))
        fit(net, balancer, balancer.dataset((x, y), shuffle_seed=SEED))
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    weights = weights_of_all_ranks(net)
    np.testing.assert_array_equal(weights, np.broadcast_to(weights[0], weights.shape))
    assert np.isfinite(weights).all()
    assert isinstance(net.optimizer, keras.optimizers.LossScaleOptimizer)


def check_loss_scaling_the_wrong_way_round_is_an_error():
    balancer = hvd.Balancer(B, "even")
    net = model()
    compile_model(net, keras.optimizers.LossScaleOptimizer(sgd(balancer)))
    with pytest.raises(ValueError, match="wrap it the other way round"):
        net.fit(*images(B), batch_size=B, verbose=0)


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
            seen = [_global_batch(reader, s, batch) for s, batch in enumerate(rest)]
            assert len(seen) == -(-num_left // (B // 2 + 1))
            order = EpochOrder(len(ids[1]), SEED, epoch).indices(0, len(ids[1]))
            assert list(chain.from_iterable(seen)) == order[-num_left:].tolist()
            reader.loop.end_epoch()
        reader.loop.end_training()


def check_training_that_cannot_go_on_so_says_why():
    balancer = hvd.Balancer(B, "even")
    balancer.dataset(np.arange(5 * B), shuffle_seed=SEED)
    state = {**balancer.state_dict(), "epoch": 2, "used": [[0, B]]}
    for source, seed, text in (
        (np.arange(4 * B), SEED, r"num_samples=64 instead of 80"),
        (np.arange(5 * B), SEED + 1, r"shuffle_seed=8 instead of 7"),
    ):
        other = hvd.Balancer(B, "even")
        other.load_state_dict(state)
        with pytest.raises(ValueError, match=text):
            other.dataset(source, shuffle_seed=seed)
        other = hvd.Balancer(B, "even")
        other.dataset(source, shuffle_seed=seed)
        with pytest.raises(ValueError, match=text):
            other.load_state_dict(state)
    for used, text in (
        ([[0, 6 * B]], "positions up to 96 are used"),
        ([[0, 5 * B]], "no sample is left of epoch 2"),
        ([[4, 2]], "intervals in ascending order"),
        ([[0, 2], [2, 4]], "do not touch"),
        ([[0]], "not a pair of positions"),
    ):
        with pytest.raises(ValueError, match=text):
            balancer.load_state_dict({**state, "used": used})
    balancer.load_state_dict(state)
    balancer.loop.begin_training()
    with pytest.raises(ValueError, match=r"begins with epoch 0 .* go on in epoch 2"):
        balancer.loop.begin_epoch(0)
    balancer.loop.begin_epoch(2)
    assert balancer.loop.num_steps_in_epoch == 4
    balancer.loop.end_training()
