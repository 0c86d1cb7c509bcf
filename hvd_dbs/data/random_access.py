"""Python objects with `__len__` and `__getitem__` as a source."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.data.items import ItemSpec
from hvd_dbs.data.source import Source

_NUM_THREADS = 16
_MOST_NAMED = 5


class RandomAccess(Source):
    """Any object with `__len__` and `__getitem__`, read by threads.

    Data sources of `grain` and `array_record`, lists, memory-mapped arrays, map-style data sets of
    other libraries. An item is a number, text, bytes, an array, or a tuple or dict of those; a list
    counts as an array, or as a tuple if it holds arrays. All items have the structure, shapes and
    dtypes of item 0, which is read when the data set is made. Where the object has `__getitems__`
    (as those of `array_record`) it is asked for all samples of a batch at once.

    The items of a `keras.utils.PyDataset` are batches. Its samples are their rows: all items but
    the last must have as many as item 0. Shuffling moves whole items, since a sample costs
    reading the item that it is in; each item that a local batch has samples of is read once for
    it. `on_epoch_end` is not called: the order comes from the balancer.

    What is guaranteed: each sample once per epoch and the same global batches whatever the plan
    is, as long as item i means the same on all ranks. Python runs one thread at a time, so
    threads overlap waiting (files, network, decompression in C), not Python code.

    Args:
        source: The object.
        num_threads: Items read at once. 1: the object is never called by two threads at once.
            None: 16, and for a `PyDataset` its `workers`.
        batched: Whether items are batches; None: those of a `PyDataset` are.

    Example:
        >>> source = ArrayRecordDataSource(paths)  # doctest: +SKIP
        >>> dataset = balancer.dataset(RandomAccess(source), shuffle_seed=7)  # doctest: +SKIP
        >>> dataset = dataset.map(lambda r: tf.io.parse_example(r, features))  # doctest: +SKIP
    """

    def __init__(
        self, source: Any, *, num_threads: int | None = None, batched: bool | None = None
    ) -> None:
        missing = [name for name in ("__len__", "__getitem__") if not hasattr(source, name)]
        if missing:
            raise TypeError(
                f"source is a {type(source).__name__} without {' and '.join(missing)}; expected "
                f"an object whose items can be read by number."
            )
        is_py_dataset = hasattr(source, "num_batches") and hasattr(source, "on_epoch_end")
        if num_threads is None:
            num_threads = max(1, source.workers) if is_py_dataset else _NUM_THREADS
        if num_threads < 1:
            raise ValueError(f"num_threads={num_threads} must be at least 1.")
        self._source = source
        self._num_threads = num_threads
        self._batched = is_py_dataset if batched is None else batched

    @property
    def num_samples(self) -> int:
        """Number of items, or of their rows. Reads item 0, and the last one if batched."""
        spec = self._spec
        if not self._batched:
            return self._num_items
        number = self._num_items - 1
        last = len(spec.rows(self._fetch([number])[0], number)[0])
        if last > self._item_size:
            raise ValueError(
                f"item {number}, the last, has {last} samples, item 0 has {self._item_size}; "
                f"expected no more than in item 0."
            )
        return number * self._item_size + last

    @property
    def identity(self) -> str:
        """Structure, shapes and dtypes."""
        return self._spec.text

    @property
    def block_size(self) -> int:  # type: ignore[override]
        """Rows of an item, which shuffling leaves together."""
        return self._item_size

    def batches(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        """Reads the items of each batch, and the next ones meanwhile."""
        spec = self._spec
        read = self._read_rows if self._batched else self._read_items

        def read_batch(samples: tf.Tensor) -> Any:
            leaves = tf.numpy_function(read, [samples], spec.dtypes)
            return spec.pack(leaves)

        return indices.map(read_batch, num_parallel_calls=1 if self._num_threads == 1 else 2)

    @functools.cached_property
    def _num_items(self) -> int:
        num_items = len(self._source)
        if num_items < 1:
            raise ValueError("source has no items; expected at least 1.")
        return num_items

    @functools.cached_property
    def _spec(self) -> ItemSpec:
        assert self._num_items  # Says so if there is no item 0.
        # As batches are read: __getitems__ may return other types than __getitem__.
        return ItemSpec.of(self._fetch([0])[0], self._batched)

    @functools.cached_property
    def _item_size(self) -> int:
        return len(self._spec.rows(self._fetch([0])[0], 0)[0]) if self._batched else 1

    @functools.cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._num_threads, thread_name_prefix="hvd_dbs_read")

    def _fetch(self, numbers: Sequence[int]) -> Sequence[Any]:
        """The items of these numbers."""
        if hasattr(self._source, "__getitems__"):
            return self._many(numbers)
        if self._num_threads == 1 or len(numbers) == 1:
            return [self._item(number) for number in numbers]
        return list(self._pool.map(self._item, numbers))

    def _item(self, number: int) -> Any:
        with _says_what_failed(f"item {number} cannot be read: __getitem__"):
            return self._source[number]

    def _many(self, numbers: Sequence[int]) -> Sequence[Any]:
        with _says_what_failed(f"{_named(numbers)} cannot be read: __getitems__"):
            items = self._source.__getitems__(numbers)
        if len(items) != len(numbers):
            raise ValueError(
                f"__getitems__ of {type(self._source).__name__} was asked for {len(numbers)} items "
                f"and returned {len(items)}; expected one for each number, in their order."
            )
        return items

    def _read_items(self, samples: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Leaves of a batch of items, each stacked: shape `[count, ...]`."""
        numbers = samples.tolist()
        items = [
            self._spec.leaves(item, number)
            for number, item in zip(numbers, self._fetch(numbers), strict=True)
        ]
        return [np.stack(leaves) for leaves in zip(*items, strict=True)]

    def _read_rows(self, samples: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Leaves of a batch of rows of items that are batches themselves."""
        item_of, row_of = np.divmod(samples, self._item_size)
        numbers = np.unique(item_of).tolist()
        parts = []
        for number, item in zip(numbers, self._fetch(numbers), strict=True):
            leaves = self._spec.rows(item, number)
            if len(leaves[0]) != self._item_size and number != self._num_items - 1:
                raise ValueError(
                    f"item {number} has {len(leaves[0])} samples, item 0 has {self._item_size}; "
                    f"expected the same number in all items but the last."
                )
            parts.append(leaves)
        position = np.empty(len(samples), dtype=np.int64)
        start, rows = 0, []
        for number, leaves in zip(numbers, parts, strict=True):
            chosen = np.flatnonzero(item_of == number)
            position[chosen] = np.arange(start, start + len(chosen))
            start += len(chosen)
            rows.append([leaf[row_of[chosen]] for leaf in leaves])
        return [np.concatenate(leaf)[position] for leaf in zip(*rows, strict=True)]


def _named(numbers: Sequence[int]) -> str:
    some = ", ".join(map(str, numbers[:_MOST_NAMED]))
    return f"items {some}{', ...' if len(numbers) > _MOST_NAMED else ''}"


@contextlib.contextmanager
def _says_what_failed(call: str) -> Iterator[None]:
    """Raises ValueError where the user's code fails; a StopIteration would end the data set."""
    try:
        yield
    except Exception as error:
        said = f": {error}" if str(error) else ""
        raise ValueError(f"{call} raised {type(error).__name__}{said}") from error
