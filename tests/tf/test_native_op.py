"""The native operations by themselves, in one process; with Horovod they are in tests/mpi."""

from __future__ import annotations

import itertools
import types

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import hvd_dbs
import hvd_dbs.tensorflow
from hvd_dbs.ops import native
from hvd_dbs.ops.buckets import plan_buckets

LIBRARY = native.loaded()
needs_library = pytest.mark.skipif(LIBRARY is None, reason=native.reason_for_absence())


def pack(tensors, wire=tf.float32, factor=1.0):
    return LIBRARY.ops.hvd_dbs_pack(tensors=tensors, factor=factor, Wire=wire)


def unpack(bucket, like, shapes=None, dynamic_shapes=()):
    return LIBRARY.ops.hvd_dbs_unpack(
        bucket=bucket,
        dynamic_shapes=list(dynamic_shapes),
        N=len(like),
        T=like[0].dtype,
        shapes=shapes or [tensor.shape for tensor in like],
    )


@needs_library
@pytest.mark.parametrize(
    ("dtype", "wire"),
    [(tf.float32, tf.float32), (tf.float64, tf.float64), (tf.bfloat16, tf.float32)],
)
def test_a_bucket_packed_and_unpacked_is_the_product(dtype, wire):
    shapes = ((3, 5), (), (0, 2), (1000,))
    tensors = [tf.cast(tf.random.normal(shape), dtype) for shape in shapes]
    bucket = pack(tensors, wire=wire, factor=0.25)
    before = bucket.numpy().copy()
    for tensor, result in zip(tensors, unpack(bucket, tensors), strict=True):
        assert result.shape == tensor.shape
        assert result.dtype == dtype
        np.testing.assert_array_equal(result.numpy(), (tensor * tf.cast(0.25, dtype)).numpy())
    np.testing.assert_array_equal(bucket, before)


@needs_library
@pytest.mark.parametrize("dtype", [tf.float16, tf.float32, tf.float64])
def test_tensors_of_the_buckets_type_stay_in_its_memory(dtype):
    tensors = [tf.ones([100], dtype), tf.ones([0], dtype), tf.ones([3, 3], dtype)]
    bucket = pack(tensors, wire=dtype)
    memory = np.from_dlpack(bucket)
    for result in unpack(bucket, tensors):
        assert not result.shape.num_elements() or np.shares_memory(np.from_dlpack(result), memory)


@needs_library
def test_factor_0_makes_zeros_of_nan_and_factor_nan_makes_nan():
    tensor = tf.constant([np.nan, np.inf, -np.inf, 1.0])
    np.testing.assert_array_equal(pack([tensor], factor=0.0), np.zeros(16))
    bucket = pack([tf.constant([0.0, 1.0])], factor=np.nan)
    assert np.isnan(bucket[:2]).all()
    np.testing.assert_array_equal(bucket[2:], np.zeros(14))  # Nothing but the tensors is scaled.


@needs_library
def test_a_packed_bucket_stays_what_it_is_when_the_next_one_is_packed():
    @tf.function
    def step(tensor):
        return pack([tensor])

    first = step(tf.fill([100], 1.0))
    second = step(tf.fill([100], 2.0))
    assert first[0] == 1.0
    assert second[0] == 2.0


@needs_library
def test_the_bucket_of_known_shapes_has_a_known_length():
    @tf.function
    def step(known, unknown):
        assert pack([known]).shape == (112,)
        assert pack([known], wire=tf.float16).shape == (128,)
        assert pack([known, unknown]).shape == (None,)
        return pack([known, unknown])

    specs = tf.TensorSpec([100]), tf.TensorSpec([None])
    bucket = step.get_concrete_function(*specs)(tf.ones([100]), tf.ones([17]))
    assert bucket.shape == (112 + 32,)


@needs_library
def test_shapes_that_do_not_fit_the_bucket_are_an_error():
    bucket = pack([tf.ones([100])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="other shapes"):
        unpack(bucket, [tf.ones([1000])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="neither known nor given"):
        unpack(bucket, [tf.ones([100])], shapes=[tf.TensorShape([None])])


@needs_library
def test_operations_have_no_gradient_rather_than_a_wrong_one():
    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(pack([variable.read_value()]))
    with pytest.raises(LookupError, match="HvdDbsPack"):
        tape.gradient(value, variable)


@needs_library
def test_the_library_says_what_it_was_built_for():
    found = native._IDENTITY.search(native._LIBRARY.read_bytes())
    package, tensorflow, _, interface = (part.decode() for part in found.groups())
    assert (
        native.misfit((package, tensorflow, interface), hvd_dbs.__version__, tf.__version__) == ""
    )
    assert (package, tensorflow) == (hvd_dbs.__version__, tf.__version__)


def test_a_library_for_another_version_is_refused_with_the_way_out(tmp_path):
    assert "TensorFlow 2.19.0 and this is TensorFlow 2.21.0" in native.misfit(
        ("1", "2.19.0", "1"), "1", "2.21.0"
    )
    old = tmp_path / "old.so"
    old.write_bytes(b"\x7fELF hvd_dbs-native version=0.0.1 tensorflow=2.21.0 cuda=no; rest")
    library, reason = native._load(old)
    assert library is None
    assert "hvd_dbs 0.0.1" in reason
    assert "Build it again" in reason
    assert native._load(tmp_path / "none.so")[0] is None
    identity = f"hvd_dbs-native version={hvd_dbs.__version__} tensorflow={tf.__version__} cuda=no"
    for text, expected in (
        (f"{identity};", "native interface 1 and this is native interface"),
        (f"{identity} interface=0;", "native interface 0 and this is native interface"),
        (f"{identity} interface={native.INTERFACE};", "cannot be loaded"),
    ):
        library = tmp_path / f"{expected}.so"
        library.write_bytes(text.encode())
        loaded, reason = native._load(library)
        assert loaded is None
        assert expected in reason


def test_an_unknown_mode_names_the_known_ones(monkeypatch):
    monkeypatch.setenv("HVD_DBS_NATIVE", "yes")
    with pytest.raises(ValueError, match="auto"):
        native.loaded()
    monkeypatch.setenv("HVD_DBS_NATIVE", "0")
    assert native.loaded() is None


@given(
    st.lists(st.tuples(st.integers(0, 100), st.sampled_from("ab")), max_size=40),
    st.integers(1, 150),
)
def test_each_tensor_is_in_one_bucket_of_its_kind(tensors, bucket_bytes):
    sizes, kinds = [size for size, _ in tensors], [kind for _, kind in tensors]
    plan = plan_buckets(sizes, kinds, bucket_bytes)
    assert sorted(i for bucket in plan for i in bucket) == list(range(len(tensors)))
    for bucket in plan:
        assert bucket == sorted(bucket)
        assert len({kinds[i] for i in bucket}) == 1
        sized = [sizes[i] for i in bucket if sizes[i]]  # What has no size goes along.
        assert len(sized) <= 1 or sum(sized) <= bucket_bytes
    # Of each kind: none could have been closed later.
    for kind in set(kinds):
        of_kind = [bucket for bucket in plan if kinds[bucket[0]] == kind]
        for bucket, following in itertools.pairwise(of_kind):
            assert sizes[following[0]] > 0
            assert sum(sizes[i] for i in [*bucket, following[0]]) > bucket_bytes


def test_every_public_name_of_horovod_is_there():
    foreign = {"os", "tf", "warnings", "version"}
    names = {
        name
        for name in vars(hvd)
        if not name.startswith("_")
        and name not in foreign
        # Horovod's modules are reached by their own names, but elastic is used as hvd.elastic.
        and (name == "elastic" or not isinstance(getattr(hvd, name), types.ModuleType))
    }
    ours = hvd_dbs.tensorflow
    assert names - set(ours.__all__) == set()
    added = {"Balancer", "data", "observers", "weighted_allreduce", "global_mean", "global_sum"}
    assert set(ours.__all__) - names == added
    replaced = {"DistributedGradientTape", "PartialDistributedGradientTape", "DistributedOptimizer"}
    replaced |= {"broadcast_variables", "broadcast_global_variables", "broadcast_object_fn"}
    replaced |= {"SyncBatchNormalization", "elastic", "init", "shutdown"}
    for name in names - replaced:
        assert getattr(ours, name) is getattr(hvd, name)
