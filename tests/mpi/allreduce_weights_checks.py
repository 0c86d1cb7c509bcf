"""Weights of the weighted allreduce that cannot be, and how exactly they count. On 1 to 3 ranks."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.tensorflow
from hvd_dbs.ops.weighted_allreduce import weighted_allreduce
from tests.mpi.means import assert_near, both_means, expected_mean


def check_whole_numbers_are_refused():
    with pytest.raises(TypeError, match="int32"):
        weighted_allreduce([tf.constant([1, 2])], 1.0)


def check_weights_that_cannot_be_are_refused():
    one = [tf.ones(3)]
    for weight in (-1, -0.5, float("nan"), float("inf"), np.float32(-2), np.array(-1.0)):
        for options in ({"weight": weight}, {"weight": 1.0, "total_weight": weight}):
            with pytest.raises(ValueError, match="must be a finite number that is not negative"):
                weighted_allreduce(one, **options)
    with pytest.raises(ValueError, match="weight=-1 must"):
        with tf.GradientTape() as tape:
            value = tape.watched_variables()
        hvd_dbs.tensorflow.DistributedGradientTape(tape, weight=-1).gradient(tf.ones(()), value)
    # Once, the native operation took the process with it.
    for weight in ([1.0, 2.0], np.ones(1), tf.ones(2)):
        with pytest.raises(ValueError, match=r"weight is of shape \([12],\); expected a scalar"):
            weighted_allreduce(one, weight)
    for weight in ("3", None, object()):
        with pytest.raises(TypeError, match="expected a number or a scalar tensor"):
            weighted_allreduce(one, weight)
    with pytest.raises(TypeError, match=r"is a single .*Tensor; expected a list"):
        weighted_allreduce(one[0], 1.0)

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def of_any_shape(weight):
        return weighted_allreduce([tf.ones(3)], weight)

    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with"):
        of_any_shape(tf.ones(2))
    np.testing.assert_array_equal(of_any_shape(tf.ones(()))[0], np.ones(3))


def check_a_tensors_weight_of_nan_is_seen_by_all():
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1], tf.int64), (2, 2))
    for value, total in ((np.nan, None), (np.nan, 3.0), (np.inf, None)):
        # Also where the others have no weight, and where what is multiplied is 0.
        for others in (1.0, 0.0):
            weight = tf.constant(value if hvd.rank() == hvd.size() - 1 else others)
            for means in both_means([tf.ones(3), tf.zeros(3), rows], weight, total_weight=total):
                assert np.isnan(means[0]).all()
                assert np.isnan(means[1]).all()
                assert np.isnan(tf.convert_to_tensor(means[2])[1]).all()


def check_what_a_wrong_total_does():
    weight = 1.0 + hvd.rank()
    total = 2.0 * sum(1.0 + rank for rank in range(hvd.size()))
    for means in both_means([tf.fill([3], 4.0)], weight, total_weight=total):
        np.testing.assert_allclose(means[0], np.full(3, 2.0), rtol=1e-6)


def check_a_weight_is_summed_only_where_the_total_is_not_known():
    def summed(total: Any) -> list[str]:
        @tf.function
        def step(weight: tf.Tensor) -> list[Any]:
            return weighted_allreduce([tf.ones(3), tf.ones(2)], weight, total_weight=total)

        graph = step.get_concrete_function(tf.TensorSpec([])).graph
        kinds = [operation.type for operation in graph.get_operations()]
        return [kind for kind in kinds if kind == "HorovodAllreduce"]

    assert len(summed(3.0)) == 1
    assert len(summed(None)) == 2


def check_whole_and_exact_weights():
    # Beyond what float32 tells apart; the result would be 0 or 1 there.
    weight = 2**24 + 1 if hvd.rank() == 0 else 2**24
    for given in (weight, np.int64(weight), tf.constant(weight, tf.int64)):
        (mean,) = weighted_allreduce(
            [tf.constant([1.0 - 2.0 * (hvd.rank() % 2)], tf.float64)], given
        )
        assert_near(
            mean, expected_mean(tf.constant([1.0 - 2.0 * (hvd.rank() % 2)]), weight), tf.float64
        )
