"""The native weighted allreduce against the reference implementation and NumPy, on 1 to 3 ranks."""

from __future__ import annotations

import os
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_dbs.tensorflow
from hvd_dbs.keras.xla import turn_off_xla
from hvd_dbs.ops import native
from hvd_dbs.ops.weighted_allreduce import weighted_allreduce
from hvd_dbs.rank_names import name_ranks
from tests.mpi.means import assert_near, both_means, expected_mean, random_tensor

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
SHAPES = ((), (1,), (0,), (3, 0, 2), (7,), (64,), (3, 3, 5), (65, 129), (100_003,))


def check_all_types_and_shapes_equal_the_twin_and_float64():
    for dtype in DTYPES:
        tensors = [random_tensor(shape, dtype, i) for i, shape in enumerate(SHAPES)]
        weight = 3.0 + hvd.rank()
        for total in (None, sum(3 + rank for rank in range(hvd.size()))):
            ours, references = both_means(tensors, weight, total_weight=total)
            for tensor, one, other in zip(tensors, ours, references, strict=True):
                assert one.dtype == dtype
                assert one.shape == tensor.shape
                assert_near(one, tf.cast(other, tf.float64), dtype)
                if tensor.shape.num_elements():
                    assert_near(one, expected_mean(tensor, weight), dtype)


def check_weights_zero_tiny_and_huge():
    tensors = [random_tensor((33,), dtype, 5) for dtype in DTYPES]
    for weights in ((0.0, 1.0, 2.0), (1e-30, 2e-30, 5e-30), (1e30, 3e30, 2e30), (0.0, 0.0, 0.0)):
        weight = weights[hvd.rank()] if hvd.size() > 1 else weights[1]
        of_all = weights[: hvd.size()] if hvd.size() > 1 else [weight]
        for total in (None, sum(of_all)):
            ours, references = both_means(tensors, weight, total_weight=total)
            for tensor, one, other in zip(tensors, ours, references, strict=True):
                expected = expected_mean(tensor, weight)
                assert_near(one, expected, tensor.dtype)
                assert_near(other, expected, tensor.dtype)


def check_nan_of_a_rank_without_weight_does_no_harm():
    last = hvd.size() - 1
    has_none = hvd.rank() == last and last > 0
    for dtype, nothing in ((dtype, nothing) for dtype in DTYPES for nothing in (0.0, -3.0)):
        good = random_tensor((50,), dtype, 1)
        bad = tf.cast(tf.constant([np.nan, np.inf, -np.inf, 1.0, np.nan] * 10), dtype)
        rows = tf.constant([0, 1, 0, 1, 0], tf.int64)
        mine = bad if has_none else good
        expected = expected_mean(mine, 0.0 if has_none else 2.0)
        tensors = [mine, tf.IndexedSlices(tf.reshape(mine, [5, 10]), rows, (2, 10))]
        for total in (None, 2.0 * max(last, 1)):
            # The value of a tensor is not checked: a negative one counts as 0.
            weight = tf.constant(nothing if has_none else 2.0)
            ours, references = both_means(tensors, weight, total_weight=total)
            for one, other in zip(ours, references, strict=True):
                dense, of_reference = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
                assert np.isfinite(tf.cast(dense, tf.float64).numpy()).all()
                assert_near(dense, tf.cast(of_reference, tf.float64), dtype)
            assert_near(ours[0], expected, dtype)


def check_nan_of_a_rank_with_weight_is_seen_by_all():
    (mean,) = weighted_allreduce([tf.constant([1.0, np.nan if hvd.rank() == 0 else 2.0])], 1.0)
    assert np.isfinite(mean[0].numpy())
    assert np.isnan(mean[1].numpy())


def check_dense_sparse_and_missing_together():
    # Each rank has other rows, and another number of them.
    num_rows = hvd.rank() + 1
    values = random_tensor((num_rows, 4), tf.float32, 2)
    rows = tf.constant([(hvd.rank() + i) % 5 for i in range(num_rows)], tf.int64)
    dense = random_tensor((5, 4), tf.float64, 3)
    tensors = [
        None,
        tf.IndexedSlices(values, rows, (5, 4)),
        dense,
        None,
        random_tensor((), tf.float16),
    ]
    weight = 1.5 + hvd.rank()
    ours, references = both_means(tensors, weight)
    assert ours[0] is None
    assert ours[3] is None
    assert isinstance(ours[1], tf.IndexedSlices)
    as_dense = tf.convert_to_tensor(tensors[1])
    assert_near(tf.convert_to_tensor(ours[1]), expected_mean(as_dense, weight), tf.float32)
    assert_near(tf.convert_to_tensor(references[1]), expected_mean(as_dense, weight), tf.float32)
    assert_near(ours[2], expected_mean(dense, weight), tf.float64)
    for total in (None, sum(1.5 + rank for rank in range(hvd.size()))):
        (only_sparse,) = weighted_allreduce([tensors[1]], weight, total_weight=total)
        assert_near(tf.convert_to_tensor(only_sparse), expected_mean(as_dense, weight), tf.float32)
    assert weighted_allreduce([None], weight) == [None]
    (empty,) = weighted_allreduce([tf.zeros([0, 3])], weight)
    assert empty.shape == (0, 3)


def check_five_hundred_tensors_in_many_buckets_under_tf_function():
    shapes = [(1 + i % 13, 1 + i % 7) for i in range(500)]
    tensors = [random_tensor(shape, DTYPES[i % 4], i) for i, shape in enumerate(shapes)]
    weight = 1.0 + hvd.rank()
    total = sum(1.0 + rank for rank in range(hvd.size()))

    @tf.function
    def step(tensors: list[tf.Tensor], weight: tf.Tensor) -> list[tf.Tensor]:
        doubled = [tensor + tensor for tensor in reversed(tensors)][::-1]
        return weighted_allreduce(
            doubled, weight, total_weight=total, bucket_bytes=2000, name="many"
        )

    for _ in range(3):  # The second and later ones reuse memory.
        results = step(tensors, tf.constant(weight))
    for tensor, result in zip(tensors, results, strict=True):
        assert_near(result, expected_mean(tensor + tensor, weight), tensor.dtype)
    # What came back stays what it is while later steps run.
    kept = [result.numpy() for result in results]
    step([tensor * 0 for tensor in tensors], tf.constant(weight))
    for result, before in zip(results, kept, strict=True):
        np.testing.assert_array_equal(result.numpy(), before)


def check_shapes_that_are_only_known_later():
    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec(None), tf.TensorSpec([])])
    def step(matrix: tf.Tensor, anything: tf.Tensor, scalar: tf.Tensor) -> list[tf.Tensor]:
        return weighted_allreduce([matrix, anything, scalar], 2.0 + hvd.rank(), name="later")

    for size in (5, 0, 2):
        tensors = [
            random_tensor((size, 3), tf.float32),
            random_tensor((2, size), tf.float32),
            tf.constant(1.0),
        ]
        for tensor, result in zip(tensors, step(*tensors), strict=True):
            assert result.shape == tensor.shape
            if tensor.shape.num_elements():
                assert_near(result, expected_mean(tensor, 2.0 + hvd.rank()), tf.float32)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def alone(matrix: tf.Tensor) -> list[tf.Tensor]:
        return weighted_allreduce([matrix], 1.0, total_weight=hvd.size(), name="later.alone")

    for size in (0, 4):  # A bucket without elements, too.
        (mean,) = alone(tf.ones([size, 3]))
        np.testing.assert_allclose(mean, np.ones([size, 3]), rtol=1e-6)


def check_compression():
    tensors = [random_tensor((1000,), dtype, i) for i, dtype in enumerate(DTYPES)]
    weight = 2.0 + hvd.rank()
    for total in (None, sum(2.0 + rank for rank in range(hvd.size()))):
        options = {"compression": hvd.Compression.fp16, "total_weight": total}
        ours, references = both_means(tensors, weight, **options)
        for tensor, one, other in zip(tensors, ours, references, strict=True):
            assert one.dtype == tensor.dtype
            # What travels is a half.
            precision = tf.bfloat16 if tensor.dtype == tf.bfloat16 else tf.float16
            assert_near(one, expected_mean(tensor, weight), precision)
            assert_near(other, expected_mean(tensor, weight), precision)

    class Other(hvd.compression.Compressor):
        compress = staticmethod(lambda tensor: (tensor, None))
        decompress = staticmethod(lambda tensor, context: tensor)

    (mean,) = weighted_allreduce([tensors[2]], weight, compression=Other)
    assert_near(mean, expected_mean(tensors[2], weight), tf.float32)


def check_large_half_tensors_keep_their_range():
    (mean,) = weighted_allreduce([tf.fill([10], tf.constant(60000.0, tf.float16))], 1000.0)
    np.testing.assert_array_equal(mean.numpy(), np.full(10, 60000.0, np.float16))


def check_process_set():
    if hvd.size() < 2:
        pytest.skip("needs a rank to leave out")
    last = hvd.size() - 1
    ranks = [0, last] if last > 1 else [last]  # All ranks together are a set already.
    members = hvd.add_process_set(ranks)
    if members.included():
        tensor = tf.fill([3], float(hvd.rank()))
        (mean,) = weighted_allreduce([tensor], 1.0 + hvd.rank(), process_set=members)
        weights = [1.0 + rank for rank in ranks]
        expected = last * weights[-1] / sum(weights)
        np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-6)
    hvd.remove_process_set(members)


def check_a_rank_without_the_library_takes_all_to_the_reference():
    tensor = random_tensor((10,), tf.float32)
    if hvd.rank() == hvd.size() - 1:
        os.environ["HVD_DBS_NATIVE"] = "0"
    native.forget_agreement()
    try:
        assert native.agreed() is None
        (mean,) = weighted_allreduce([tensor], 1.0)
    finally:
        os.environ.pop("HVD_DBS_NATIVE", None)
        native.forget_agreement()
    assert native.agreed() is not None
    assert_near(mean, expected_mean(tensor, 1.0), tf.float32)


def check_insisting_on_the_library_fails_on_all_ranks_where_one_lacks_it():
    os.environ["HVD_DBS_NATIVE"] = "1" if hvd.rank() == 0 else "0"
    native.forget_agreement()
    try:
        if hvd.size() > 1:
            others = name_ranks(range(1, hvd.size()))
            with pytest.raises(RuntimeError, match=f"which {others} cannot use"):
                native.agreed()
        else:
            assert native.agreed() is not None
    finally:
        del os.environ["HVD_DBS_NATIVE"]
        native.forget_agreement()


def check_gradient_tape_with_and_without_a_weight():
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3.0), tf.Variable(0.0)]
    weight = 1.0 + hvd.rank()

    def gradients_of(weighted: bool) -> tuple[list[Any], list[Any]]:
        with tf.GradientTape(persistent=True) as tape:
            loss = (1.0 + hvd.rank()) * tf.reduce_sum(variables[0] ** 2) * variables[1]
        local = tape.gradient(loss, variables)
        options = {"weight": weight} if weighted else {}
        wrapped = hvd_dbs.tensorflow.DistributedGradientTape(tape, **options)
        return local, wrapped.gradient(loss, variables)

    def of_keras(weighted: bool) -> tuple[list[Any], list[Any]]:
        with tf.GradientTape() as tape:
            loss = (1.0 + hvd.rank()) * tf.reduce_sum(kept[0] ** 2) * kept[1]
        options = {"weight": weight} if weighted else {}
        wrapped = hvd_dbs.tensorflow.DistributedGradientTape(tape, **options)
        return gradients_of(weighted)[0], wrapped.gradient(loss, kept)

    kept = [keras.Variable(variable) for variable in variables]
    for run in (gradients_of, tf.function(gradients_of), of_keras, tf.function(of_keras)):
        local, means = run(weighted=True)
        assert means[2] is None
        for one, mean in zip(local[:2], means[:2], strict=True):
            assert_near(mean, expected_mean(one, weight), tf.float32)
        local, means = run(weighted=False)
        for one, mean in zip(local[:2], means[:2], strict=True):
            assert_near(mean, expected_mean(one, 1.0), tf.float32)
    with hvd_dbs.tensorflow.DistributedGradientTape(tf.GradientTape(), weight=weight) as tape:
        loss = variables[1] * weight
    assert tape.watched_variables() == (variables[1],)
    assert_near(
        tape.gradient(loss, variables[1]), expected_mean(tf.constant(weight), weight), tf.float32
    )


def check_an_optimizer_that_would_not_be_reduced_is_refused():
    with pytest.raises(TypeError, match=r"hvd_dbs\.keras\.DistributedOptimizer"):
        hvd_dbs.tensorflow.DistributedOptimizer(keras.optimizers.SGD(1.0))
    plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    assert hvd_dbs.tensorflow.DistributedOptimizer(plain) is not plain


def check_xla_is_turned_off_before_the_first_step():
    x = np.ones([4, 3], np.float32)
    net = keras.Sequential([keras.layers.Dense(1)])
    # As Keras resolves "auto" where a GPU is visible.
    net.compile(keras.optimizers.SGD(), "mse", jit_compile=True)

    class TurnOff(keras.callbacks.Callback):
        turned_off = False

        def on_train_begin(self, logs: Any = None) -> None:
            self.turned_off = turn_off_xla(self.model)

    callback = TurnOff()
    net.fit(x, x[:, :1], verbose=0, callbacks=[callback])
    assert callback.turned_off
    assert not net.jit_compile
    assert not turn_off_xla(net)
