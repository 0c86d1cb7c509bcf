"""The native weighted allreduce against the reference implementation and NumPy, on 1 to 3 ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
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

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
SHAPES = ((), (1,), (0,), (3, 0, 2), (7,), (64,), (3, 3, 5), (65, 129), (100_003,))


def _random(shape: Sequence[int], dtype: tf.DType, seed: int = 0) -> tf.Tensor:
    random = np.random.default_rng(1000 * seed + hvd.rank())
    return tf.cast(random.standard_normal(shape), dtype)


def _both(tensors: list[Any], weight: Any, **options: Any) -> tuple[list[Any], list[Any]]:
    """What the native library and what the reference implementation makes of it."""
    assert native.agreed() is not None, native.reason_for_absence()
    ours = weighted_allreduce(tensors, weight, **options)
    os.environ["HVD_DBS_NATIVE"] = "0"
    native.forget_agreement()
    try:
        references = weighted_allreduce(tensors, weight, **options)
    finally:
        del os.environ["HVD_DBS_NATIVE"]
        native.forget_agreement()
    return ours, references


def _expected(tensor: tf.Tensor, weight: float) -> np.ndarray:
    """The weighted mean in float64, from everybody's tensors."""
    rows = hvd.allgather(tf.cast(tensor, tf.float64)[tf.newaxis], name="expected").numpy()
    weights = hvd.allgather(tf.constant([weight], tf.float64), name="weights").numpy()
    rows = np.where(weights.reshape(-1, *[1] * tensor.ndim) > 0, rows, 0)
    total = weights.sum()
    return np.tensordot(weights / total, rows, 1) if total > 0 else np.zeros(tensor.shape)


def _assert_near(actual: tf.Tensor, expected: Any, dtype: tf.DType) -> None:
    tolerance = {2: 2e-3 if dtype == tf.float16 else 1.6e-2, 4: 2e-6, 8: 1e-14}[dtype.size]
    scale = max(1e-30, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(
        tf.cast(actual, tf.float64).numpy() / scale,
        np.asarray(expected, np.float64) / scale,
        atol=tolerance,
        rtol=tolerance,
    )


def check_all_types_and_shapes_equal_the_twin_and_float64():
    for dtype in DTYPES:
        tensors = [_random(shape, dtype, i) for i, shape in enumerate(SHAPES)]
        weight = 3.0 + hvd.rank()
        for total in (None, sum(3 + rank for rank in range(hvd.size()))):
            ours, references = _both(tensors, weight, total_weight=total)
            for tensor, one, other in zip(tensors, ours, references, strict=True):
                assert one.dtype == dtype
                assert one.shape == tensor.shape
                _assert_near(one, tf.cast(other, tf.float64), dtype)
                if tensor.shape.num_elements():
                    _assert_near(one, _expected(tensor, weight), dtype)


def check_weights_zero_tiny_and_huge():
    tensors = [_random((33,), dtype, 5) for dtype in DTYPES]
    for weights in ((0.0, 1.0, 2.0), (1e-30, 2e-30, 5e-30), (1e30, 3e30, 2e30), (0.0, 0.0, 0.0)):
        weight = weights[hvd.rank()] if hvd.size() > 1 else weights[1]
        of_all = weights[: hvd.size()] if hvd.size() > 1 else [weight]
        for total in (None, sum(of_all)):
            ours, references = _both(tensors, weight, total_weight=total)
            for tensor, one, other in zip(tensors, ours, references, strict=True):
                expected = _expected(tensor, weight)
                _assert_near(one, expected, tensor.dtype)
                _assert_near(other, expected, tensor.dtype)


def check_nan_of_a_rank_without_weight_does_no_harm():
    last = hvd.size() - 1
    has_none = hvd.rank() == last and last > 0
    for dtype, nothing in ((dtype, nothing) for dtype in DTYPES for nothing in (0.0, -3.0)):
        good = _random((50,), dtype, 1)
        bad = tf.cast(tf.constant([np.nan, np.inf, -np.inf, 1.0, np.nan] * 10), dtype)
        rows = tf.constant([0, 1, 0, 1, 0], tf.int64)
        mine = bad if has_none else good
        expected = _expected(mine, 0.0 if has_none else 2.0)
        tensors = [mine, tf.IndexedSlices(tf.reshape(mine, [5, 10]), rows, (2, 10))]
        for total in (None, 2.0 * max(last, 1)):
            # The value of a tensor is not checked: a negative one counts as 0.
            weight = tf.constant(nothing if has_none else 2.0)
            ours, references = _both(tensors, weight, total_weight=total)
            for one, other in zip(ours, references, strict=True):
                dense, of_reference = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
                assert np.isfinite(tf.cast(dense, tf.float64).numpy()).all()
                _assert_near(dense, tf.cast(of_reference, tf.float64), dtype)
            _assert_near(ours[0], expected, dtype)


def check_nan_of_a_rank_with_weight_is_seen_by_all():
    (mean,) = weighted_allreduce([tf.constant([1.0, np.nan if hvd.rank() == 0 else 2.0])], 1.0)
    assert np.isfinite(mean[0].numpy())
    assert np.isnan(mean[1].numpy())


def check_dense_sparse_and_missing_together():
    # Each rank has other rows, and another number of them.
    num_rows = hvd.rank() + 1
    values = _random((num_rows, 4), tf.float32, 2)
    rows = tf.constant([(hvd.rank() + i) % 5 for i in range(num_rows)], tf.int64)
    dense = _random((5, 4), tf.float64, 3)
    tensors = [None, tf.IndexedSlices(values, rows, (5, 4)), dense, None, _random((), tf.float16)]
    weight = 1.5 + hvd.rank()
    ours, references = _both(tensors, weight)
    assert ours[0] is None
    assert ours[3] is None
    assert isinstance(ours[1], tf.IndexedSlices)
    as_dense = tf.convert_to_tensor(tensors[1])
    _assert_near(tf.convert_to_tensor(ours[1]), _expected(as_dense, weight), tf.float32)
    _assert_near(tf.convert_to_tensor(references[1]), _expected(as_dense, weight), tf.float32)
    _assert_near(ours[2], _expected(dense, weight), tf.float64)
    for total in (None, sum(1.5 + rank for rank in range(hvd.size()))):
        (only_sparse,) = weighted_allreduce([tensors[1]], weight, total_weight=total)
        _assert_near(tf.convert_to_tensor(only_sparse), _expected(as_dense, weight), tf.float32)
    assert weighted_allreduce([None], weight) == [None]
    (empty,) = weighted_allreduce([tf.zeros([0, 3])], weight)
    assert empty.shape == (0, 3)


def check_five_hundred_tensors_in_many_buckets_under_tf_function():
    shapes = [(1 + i % 13, 1 + i % 7) for i in range(500)]
    tensors = [_random(shape, DTYPES[i % 4], i) for i, shape in enumerate(shapes)]
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
        _assert_near(result, _expected(tensor + tensor, weight), tensor.dtype)
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
        tensors = [_random((size, 3), tf.float32), _random((2, size), tf.float32), tf.constant(1.0)]
        for tensor, result in zip(tensors, step(*tensors), strict=True):
            assert result.shape == tensor.shape
            if tensor.shape.num_elements():
                _assert_near(result, _expected(tensor, 2.0 + hvd.rank()), tf.float32)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def alone(matrix: tf.Tensor) -> list[tf.Tensor]:
        return weighted_allreduce([matrix], 1.0, total_weight=hvd.size(), name="later.alone")

    for size in (0, 4):  # A bucket without elements, too.
        (mean,) = alone(tf.ones([size, 3]))
        np.testing.assert_allclose(mean, np.ones([size, 3]), rtol=1e-6)


def check_compression():
    tensors = [_random((1000,), dtype, i) for i, dtype in enumerate(DTYPES)]
    weight = 2.0 + hvd.rank()
    for total in (None, sum(2.0 + rank for rank in range(hvd.size()))):
        options = {"compression": hvd.Compression.fp16, "total_weight": total}
        ours, references = _both(tensors, weight, **options)
        for tensor, one, other in zip(tensors, ours, references, strict=True):
            assert one.dtype == tensor.dtype
            # What travels is a half.
            precision = tf.bfloat16 if tensor.dtype == tf.bfloat16 else tf.float16
            _assert_near(one, _expected(tensor, weight), precision)
            _assert_near(other, _expected(tensor, weight), precision)

    class Other(hvd.compression.Compressor):
        compress = staticmethod(lambda tensor: (tensor, None))
        decompress = staticmethod(lambda tensor, context: tensor)

    (mean,) = weighted_allreduce([tensors[2]], weight, compression=Other)
    _assert_near(mean, _expected(tensors[2], weight), tf.float32)


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
            for means in _both([tf.ones(3), tf.zeros(3), rows], weight, total_weight=total):
                assert np.isnan(means[0]).all()
                assert np.isnan(means[1]).all()
                assert np.isnan(tf.convert_to_tensor(means[2])[1]).all()


def check_what_a_wrong_total_does():
    weight = 1.0 + hvd.rank()
    total = 2.0 * sum(1.0 + rank for rank in range(hvd.size()))
    for means in _both([tf.fill([3], 4.0)], weight, total_weight=total):
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
        _assert_near(
            mean, _expected(tf.constant([1.0 - 2.0 * (hvd.rank() % 2)]), weight), tf.float64
        )


def check_a_rank_without_the_library_takes_all_to_the_reference():
    tensor = _random((10,), tf.float32)
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
    _assert_near(mean, _expected(tensor, 1.0), tf.float32)


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
            _assert_near(mean, _expected(one, weight), tf.float32)
        local, means = run(weighted=False)
        for one, mean in zip(local[:2], means[:2], strict=True):
            _assert_near(mean, _expected(one, 1.0), tf.float32)
    with hvd_dbs.tensorflow.DistributedGradientTape(tf.GradientTape(), weight=weight) as tape:
        loss = variables[1] * weight
    assert tape.watched_variables() == (variables[1],)
    _assert_near(
        tape.gradient(loss, variables[1]), _expected(tf.constant(weight), weight), tf.float32
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
