"""What is learned does not depend on where the samples come from. Run on 1, 2 and 3 ranks."""

from __future__ import annotations

from itertools import pairwise

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.ops import native
from hvd_dbs.sampling import EpochOrder
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
    weights_of_all_ranks,
    write_examples,
)
from tests.mpi.together import meet, shared_folder

B = 16


class Sevens(keras.utils.PyDataset):
    """Batches of 7."""

    def __init__(self, arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return (len(self.arrays[0]) + 6) // 7

    def __getitem__(self, number):
        return tuple(array[7 * number : 7 * number + 7] for array in self.arrays)


def check_all_sources_learn_the_same():
    arrays = images(70)
    sources = [
        arrays,
        hvd.data.RandomAccess(list(zip(*arrays, strict=True))),
        hvd.data.RandomAccess(Sevens(arrays)),
        hvd.data.Stream(tf.data.Dataset.from_tensor_slices(arrays)),
    ]
    weights = []
    costs = np.random.default_rng(1).lognormal(size=70)
    for source, cost in [*((one, None) for one in sources), *((one, costs) for one in sources[2:])]:
        balancer = hvd.Balancer(B, scripted(some_plans(B)))
        net = model()
        compile_model(net, sgd(balancer))
        fit(net, balancer, balancer.dataset(source, cost=cost), epochs=2)
        weights.append(flat(net))
    for other in weights[1:]:
        np.testing.assert_allclose(other, weights[0], atol=1e-6)


def check_endless_streams_change_their_batch_size_with_the_plan():
    sizes = []

    def note(x, y):
        def keep(labels):
            sizes.append(len(labels))
            return labels

        return x, tf.ensure_shape(tf.numpy_function(keep, [y], tf.int64), [None])

    x, y = images(48)
    mine = slice(hvd.rank(), None, hvd.size())
    endless = tf.data.Dataset.from_tensor_slices((x[mine], y[mine])).repeat().shuffle(16)
    for every in (None, 2):
        balancer = hvd.Balancer(B, scripted(some_plans(B)), every=every)
        dataset = balancer.dataset(hvd.data.Stream(endless, steps_per_epoch=6)).map(note)
        net = model(seed=1 + hvd.rank())
        compile_model(net, sgd(balancer))
        history = fit(net, balancer, dataset, epochs=4, steps_per_epoch=6).history
        assert len(history["loss"]) == 4
        weights = weights_of_all_ranks(net)
        np.testing.assert_array_equal(weights, np.broadcast_to(weights[0], weights.shape))
        with pytest.raises(ValueError, match="fit runs 5 steps an epoch"):
            fit(net, balancer, dataset, steps_per_epoch=5)
    most = hvd_collective().allgather(np.array([len(set(sizes))])).max()
    assert hvd.size() == 1 or most > 3  # The plans did change.


def check_an_endless_stream_keeps_its_steps_where_the_global_batch_changes():
    """Once, an epoch of a global batch of double the size had half the steps."""
    seen = []

    class Resize(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            loop = balancer.loop
            seen.append((loop.steps_done, loop.samples_in_epoch))
            balancer.resize((2 * B, B // 2, B // 2)[epoch])

    endless = tf.data.Dataset.from_tensor_slices(images(48)).repeat()
    for every in (None, 2):
        balancer, net = hvd.Balancer(B, scripted(some_plans(B)), every=every), model()
        dataset = balancer.dataset(hvd.data.Stream(endless, steps_per_epoch=6)).prefetch(2)
        compile_model(net, sgd(balancer))
        fit(net, balancer, dataset, steps_per_epoch=6, callbacks=[Resize()])
    steps, samples = np.sum(hvd_collective().allgather(np.array(seen).ravel()), 0).reshape(-1, 2).T
    assert (steps == 6 * hvd.size()).all()
    assert samples.tolist() == 2 * [6 * B, 12 * B, 3 * B]


def check_a_finite_stream_is_taken_up_and_evaluated():
    source = hvd.data.Stream(tf.data.Dataset.range(5 * B + 3))
    balancer = hvd.Balancer(B, hvd.strategies.static(some_plans(B)[0]))
    dataset = balancer.dataset(source)
    balancer.load_state_dict({**balancer.state_dict(), "epoch": 1, "used": [[0, B + 5]]})
    balancer.loop.begin_training()
    balancer.loop.begin_epoch(1)
    mine = [
        batch.numpy()[: balancer.loop.samples_in_step(step)] for step, batch in enumerate(dataset)
    ]
    balancer.loop.end_training()
    assert _of_all_ranks(mine) == list(range(B + 5, 5 * B + 3))
    assert _of_all_ranks(balancer.dataset(source, training=False)) == list(range(5 * B + 3))


def _of_all_ranks(batches):
    """All numbers in them, ascending; they are below 100."""
    row = np.full(100, -1)
    mine = np.concatenate(list(batches))
    row[: len(mine)] = mine
    rows = hvd_collective().allgather(row)
    return sorted(rows[rows >= 0].tolist())


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
                (loop.samples_in_step(step), loop.position.stage.batch_sizes_in(step)[hvd.rank()])
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


def check_records_in_files_equal_one_process():
    x, y = arrays = images(70)
    features = {
        "image": tf.io.FixedLenFeature([8, 8, 1], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(batch):
        samples = tf.io.parse_example(batch, features)
        return samples["image"], samples["label"]

    with shared_folder() as folder:
        if hvd.rank() == 0:
            borders = [0, 23, 23, 24, 70]  # Odd lengths, none, and a single one.
            for first, last in pairwise(borders):
                write_examples(
                    folder / f"images-{first}-{last}.tfrecord", x[first:last], y[first:last]
                )
        meet()
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
    if hvd.size() == 1 or native.loaded() is None:
        pytest.skip("needs two kinds of ranks")
    library = native.loaded()
    with pytest.MonkeyPatch.context() as patch:
        if hvd.rank() == hvd.size() - 1:
            patch.setenv("HVD_DBS_NATIVE", "0")
            assert native.loaded() is None
        native.forget_agreement()
        check_records_in_files_equal_one_process()
        assert native.agreed() is None
    native.forget_agreement()
    assert native.agreed() is library
