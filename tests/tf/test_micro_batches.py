"""A local batch in parts, and the random streams of these, in one process."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.keras.local_batch import LocalBatch
from hvd_dbs.keras.random_streams import MicroBatchSeeds
from hvd_dbs.ops.step_clock import StepClock
from hvd_dbs.ops.step_samples import StepSamples
from hvd_dbs.tensorflow.dependence import depends_on_samples
from hvd_dbs.tensorflow.gradient_sums import GradientSums


def cut(data, num_samples, micro_batch_size):
    """Rows of each part, and its weight, of a rank with so many of 20 samples."""
    samples = StepSamples(StepClock())
    samples.begin_epoch(2, num_samples, 1, (20, 3))
    batch = LocalBatch.of(data, samples, micro_batch_size)
    parts = [batch.part(i) for i in range(int(batch.num_parts))]
    assert sum(float(part.share) for part in parts) == pytest.approx(1)
    assert all(float(part.total) == 20 for part in parts)
    return [(int(part.num_rows), float(part.weight)) for part in parts], parts


@pytest.mark.parametrize(
    ("num_rows", "num_samples", "size", "rows", "weights"),
    [
        (8, 8, 4, [4, 4], [4, 4]),
        (7, 7, 3, [3, 3, 1], [3, 3, 1]),
        (7, 7, 64, [7], [7]),
        (7, 7, None, [7], [7]),
        (1, 0, 4, [1], [0]),  # A padding sample counts for nothing.
        (12, 4, 2, [6, 6], [2, 2]),  # Three rows for each sample.
    ],
)
def test_a_local_batch_is_cut_by_samples(num_rows, num_samples, size, rows, weights):
    found, _ = cut(tf.range(num_rows), num_samples, size)
    np.testing.assert_allclose(found, np.transpose([rows, weights]))


def test_every_row_of_any_nesting_is_in_one_part():
    data = {"x": tf.reshape(tf.range(14), [7, 2]), "y": (tf.range(7), tf.ragged.range(range(7)))}
    _, parts = cut(data, 7, 3)
    joined = tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *[p.data for p in parts])
    assert joined["y"][1].to_list() == data["y"][1].to_list()
    np.testing.assert_array_equal(joined["x"], data["x"])
    np.testing.assert_array_equal(joined["y"][0], data["y"][0])


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(TypeError, match="have a SparseTensor"):
        cut((tf.sparse.eye(4), tf.range(4)), 4, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="different first dimensions"):
        cut((tf.range(4), tf.range(5)), 4, 2)


def test_micro_batches_draw_numbers_of_their_own_and_leave_one_counter():
    model = keras.Sequential([keras.layers.Input((50,)), keras.layers.Dropout(0.5, seed=3)])
    state = model.layers[0].seed_generator.state

    def step(num):
        seeds, drawn = MicroBatchSeeds(model), []
        for i in range(num):
            seeds.begin(i)
            drawn.append(model(np.ones((1, 50)), training=True).numpy())
        seeds.end()
        return drawn

    state.assign([3, 0])
    plain = [model(np.ones((1, 50)), training=True).numpy() for _ in range(2)]
    state.assign([3, 0])
    first, again = step(3), step(1)
    np.testing.assert_array_equal(state.value, [3, 2])
    np.testing.assert_array_equal(first[0], plain[0])
    np.testing.assert_array_equal(again[0], plain[1])
    all_drawn = [*first, *again]
    assert len({one.tobytes() for one in all_drawn}) == len(all_drawn)


def test_rows_of_a_batch_are_added_and_rows_of_samples_kept():
    table = tf.Variable(tf.ones([5, 2]))

    @tf.function
    def step(words):
        def gradients(part):
            with tf.GradientTape() as tape:
                found = tf.gather(table, part) * tf.gather(table, tf.range(2))
                loss = tf.reduce_sum(found)
            return tape.gradient(loss, [table])

        sums = GradientSums(gradients(words[:1]), [table])
        totals = sums.zero(2)
        for i in range(2):
            totals = sums.add(totals, sums.values(gradients(words[i : i + 1])), i)
        (whole,) = sums.whole(totals)
        parts = [one for one in whole.indices.op.inputs if one.dtype == tf.int32 and one.shape.rank]
        dependence = [depends_on_samples(one) for one in parts]
        return whole, dependence

    whole, dependence = step(tf.constant([[3, 4], [4, 4]]))
    rows = sorted(
        zip(whole.indices.numpy().tolist(), whole.values.numpy().sum(1).tolist(), strict=True)
    )
    # Looked up for samples: 3, 4, 4, 4, once each. For the batch: 0 and 1, of both micro-batches.
    assert rows == [(0, 4.0), (1, 4.0), (3, 2.0), (4, 2.0), (4, 2.0), (4, 2.0)]
    assert sorted(bool(one) for one in dependence) == [False, True]
