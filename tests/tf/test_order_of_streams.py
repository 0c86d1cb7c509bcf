"""A finite stream has to have the same order on each rank."""

from __future__ import annotations

import pytest
import tensorflow as tf

from hvd_dbs.data import Stream


def test_each_rank_would_read_another_order_without_a_seed():
    tf.random.set_seed(None)  # With the seed of a whole program, all shuffles have one.
    samples = tf.data.Dataset.range(20)
    for shuffled in (samples.shuffle(5), samples.shuffle(5).map(lambda x: x).take(9)):
        with pytest.raises(ValueError, match="shuffled or sampled without a seed"):
            Stream(shuffled).source(4)
    with pytest.raises(ValueError, match="list_files shuffle=False"):
        Stream(tf.data.Dataset.list_files(__file__)).source(1)
    Stream(samples.shuffle(5), steps_per_epoch=3).source(4)  # Each rank's own.


def test_each_rank_would_sample_or_map_in_another_order():
    """Once 10 of 64 samples were lost, and others read twice."""
    tf.random.set_seed(None)
    samples, both = tf.data.Dataset.range(20), tf.data.Dataset.sample_from_datasets
    with pytest.raises(ValueError, match=r"sample_from_datasets\(..., seed=7\)"):
        Stream(both([samples, samples]).prefetch(1), num_samples=40).source(4)
    any_order = samples.map(lambda x: x, num_parallel_calls=2, deterministic=False)
    with pytest.raises(ValueError, match="deterministic=False"):
        Stream(any_order.prefetch(1)).source(4)
    seeded, other = (
        Stream(both([samples, samples], seed=seed), num_samples=40).source(4) for seed in (1, 2)
    )
    assert seeded.identity != other.identity
    drawn = tf.data.Dataset.zip(samples, tf.data.Dataset.random())  # In the stream's order.
    Stream(drawn).source(4)
    Stream(any_order, steps_per_epoch=3).source(4)  # Each rank's own.


def test_the_seed_is_part_of_what_samples_they_are():
    samples = tf.data.Dataset.range(20)
    one, other, plain = (
        Stream(dataset).source(4).identity
        for dataset in (samples.shuffle(5, seed=0), samples.shuffle(5, seed=1), samples)
    )
    assert len({one, other, plain}) == 3
