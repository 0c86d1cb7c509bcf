"""From a source and an index stage to the data set that Keras reads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvd_dbs.data.arrays import Arrays
from hvd_dbs.data.passes import Stage
from hvd_dbs.data.source import Source
from hvd_dbs.data.stream import Stream
from hvd_dbs.host.cores import num_cores

_KEEPS = frozenset(
    {
        "AssertCardinality",
        "AssertNext",
        "AssertPrev",
        "CopyToDevice",
        "Map",
        "MapOnGpu",
        "NonSerializable",
        "Options",
        "ParallelMap",
        "ParseExample",
        "Prefetch",
        "Repeat",
        "Restructured",
        "Sleep",
        "Take",
        "Zip",
    }
)
"""What may follow, by TensorFlow's names: element i comes out of element i, and in that order.

`Repeat` and `Take` change how many there are, which `fit` compares. All others are refused, those
that are unknown as well: one that is harmless is seen at once and can be added, but batches that
are weighted by samples of others are never seen. So are some that keep elements where they are:
`scan` can hand on what came before, and `snapshot` and `cache` give the batches of an older plan.
"""

_METHODS = {
    "DenseToRagged": "ragged_batch",
    "DenseToSparseBatch": "sparse_batch",
    "DirectedInterleave": "sample_from_datasets or choose_from_datasets",
    "ParallelBatch": "batch",
    "ParallelInterleave": "interleave",
}
"""Methods that are called otherwise than their class, which "GroupByWindow" is not."""

_LEAST_THREADS = 4
"""Threads of a data set; more wait than compute."""


def as_source(given: Any, global_batch_size: int) -> Source:
    """The source that was given, or one over the arrays that were.

    Raises:
        ValueError: If it is neither.
        TypeError: If it is a data set, a path, or an object that yields or gives samples, which
            a source of `hvd.data` reads.
    """
    if isinstance(given, Stream):
        return given.source(global_batch_size)
    if isinstance(given, tf.data.Dataset):
        raise TypeError(
            "the source is a tf.data.Dataset. Give balancer.dataset hvd.data.Stream(dataset), with "
            "single samples as elements."
        )
    if isinstance(given, str | os.PathLike):
        raise TypeError(
            f"the source {given!r} is a path. Give balancer.dataset "
            f"hvd.data.TFRecords(path, parse)."
        )
    if isinstance(given, Source):
        return given
    if hasattr(given, "__next__") or callable(given):
        raise TypeError(
            f"the source is a {type(given).__name__}, which yields samples once. Give "
            f"balancer.dataset hvd.data.Stream(tf.data.Dataset.from_generator(...), "
            f"num_samples=...), or all samples as arrays."
        )
    has_items = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    if has_items and not (_is_array(given) or isinstance(given, Sequence | Mapping)):
        raise TypeError(
            f"the source is a {type(given).__name__}, whose items are read one by one. Give "
            f"balancer.dataset hvd.data.RandomAccess(source)."
        )
    if given is None:
        raise TypeError("the source is None; expected arrays, or a source of hvd.data.")
    return Arrays(given)


def _is_array(given: Any) -> bool:
    return tf.is_tensor(given) or hasattr(given, "__array__")


def require_usable(source: Source, shuffle_seed: int | None, training: bool) -> None:
    """Checks that the source can be read in that way.

    Raises:
        ValueError: If it cannot.
    """
    if shuffle_seed is not None and not training:
        raise ValueError(
            f"shuffle_seed={shuffle_seed} with training=False: an evaluation has no order. "
            f"Leave out shuffle_seed."
        )
    if shuffle_seed is not None and source.has_own_order:
        raise ValueError(
            f"shuffle_seed={shuffle_seed} with a stream, whose samples cannot be read by number. "
            f"Shuffle the stream itself and leave out shuffle_seed."
        )
    if not training and source.is_endless:
        raise ValueError(
            "training=False with an endless stream, of which nobody knows all samples. Evaluate on "
            "a finite stream, arrays, hvd.data.TFRecords or hvd.data.RandomAccess, or give Keras "
            "each rank's part of the stream as plain validation data."
        )


def make_dataset(source: Source, index_stage: Stage) -> tf.data.Dataset:
    """The samples of each step; one element is one local batch, of dynamic length."""
    options = tf.data.Options()
    options.deterministic = True
    # Keras makes an iterator each epoch, and letting go of the one before waits for its tuner: up
    # to seconds, on one rank or another, and so on all. Parallel calls are then one per core.
    options.autotune.enabled = False
    # A stage that waits for its plan holds a thread. It must not be one of those that run the step,
    # of which a rank that is bound to one core has only one.
    options.threading.private_threadpool_size = max(_LEAST_THREADS, num_cores())
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = source.read(index_stage)
    if not source.is_endless and batches.cardinality() != index_stage.num_steps:
        batches = batches.apply(tf.data.experimental.assert_cardinality(index_stage.num_steps))
    made = batches.prefetch(tf.data.AUTOTUNE).with_options(options)
    made.hvd_dbs_stage = index_stage
    return made


def moves_of(dataset: Any) -> list[str]:
    """What moves samples to other batches downstream of `balancer.dataset`, the last first.

    Gradients are weighted by the samples that a batch has here; only what keeps them in it, such
    as `map` and `prefetch`, may follow.
    """
    if stage_of(dataset) is None:
        return []
    if dataset.options().deterministic is False:
        return ["nondeterministic with_options"]
    return _moves(dataset)


def _moves(dataset: tf.data.Dataset) -> list[str]:
    if stage_of(dataset) is None or hasattr(dataset, "hvd_dbs_stage"):
        return []
    before = [move for given in dataset._inputs() for move in _moves(given)]
    name = type(dataset).__name__.strip("_").removesuffix("Dataset")
    method = _METHODS.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if name not in _KEEPS:
        return [method, *before]
    if getattr(dataset, "_deterministic", None) == "false":
        return [f"nondeterministic {method.removeprefix('parallel_')}", *before]
    return before


def stage_of(dataset: Any) -> Stage | None:
    """The stage at the beginning of a data set that users have mapped and more; None: not ours."""
    if not isinstance(dataset, tf.data.Dataset):
        return None
    stage: Stage | None = getattr(dataset, "hvd_dbs_stage", None)
    if stage is not None:
        return stage
    inputs: Sequence[Any] = getattr(dataset, "_inputs", tuple)()  # As TensorFlow's own code does.
    stages = map(stage_of, inputs)
    return next((one for one in stages if one is not None), None)
