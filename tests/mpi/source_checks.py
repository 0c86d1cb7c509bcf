"""What is learned does not depend on where the samples come from. Run on 1, 2 and 3 ranks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.keras as hvd
from tests.mpi.problems import (
    compile_model,
    fit,
    flat,
    hvd_collective,
    images,
    model,
    scripted,
    sgd,
    some_plans,
    weights_of_all_ranks,
)

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


def check_what_only_one_rank_cannot_read_is_an_error_on_all():
    balancer = hvd.Balancer(B, "even")
    source = hvd.data.RandomAccess([] if hvd.rank() == 0 else [1, 2])
    with pytest.raises(ValueError, match="no items"):
        balancer.dataset(source)
    items = [np.zeros(3 if hvd.rank() == 0 else 2)] * 5
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="data set differs between ranks"):
            balancer.dataset(hvd.data.RandomAccess(items))
