"""TFRecord files as a source."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.data.items import without_lists
from hvd_dbs.data.records import reader as records
from hvd_dbs.data.records.index import index_files
from hvd_dbs.data.records.reader import Records
from hvd_dbs.data.source import Source

Parse = Callable[[tf.Tensor], Any]
"""From a batch of records, string of shape `[count]`, to a batch of samples."""

_MOST_NAMED = 5


class TFRecords(Source):
    """The records of TFRecord files, each rank reading those of its windows and nothing else.

    An index of each file says where its records begin: found by one scan when a job first uses
    the file, and kept beside it. The data are checked against their checksums as they are read.

    Args:
        files: A path, a pattern such as "train-*.tfrecord", or a list of them; patterns stand for
            their files in alphabetical order. Uncompressed, and on a file system of all ranks.
        parse: Makes samples of a whole batch of records at once, such as
            `lambda batch: tf.io.parse_example(batch, features)`; it must keep their number and
            order. What works on one record only, such as decoding an image, goes through
            `tf.map_fn`. It runs in the graph, on all cores. None: samples are strings.
        block_size: Records that follow each other in the files and stay together when shuffled,
            so that they are read at once; 1 shuffles each record alone. The more, the faster and
            the less random: the order within a block is that of the files. Choose a fraction of
            the smallest local batch, and write files in random order.
        on_corrupt: What to do about damaged files. "raise": an error that says where. "skip":
            all data are read once and compared with their checksums when the index is made;
            damaged records are left out on all ranks and in all epochs, and a warning counts
            them. After a damaged length nothing more can be found in a file.
        index_folder: Where indexes are kept, for folders of data that cannot be written to.

    Raises:
        ValueError: If an argument is impossible; what is wrong with the files is found in
            `balancer.dataset`.

    Example:
        >>> source = TFRecords("train-*.tfrecord", parse)  # doctest: +SKIP
        >>> dataset = balancer.dataset(source, shuffle_seed=7)  # doctest: +SKIP
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        parse: Parse | None = None,
        *,
        block_size: int = 1,
        on_corrupt: str = "raise",
        index_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if on_corrupt not in ("raise", "skip"):
            raise ValueError(f'on_corrupt={on_corrupt!r} is unknown. Use "raise" or "skip".')
        if block_size < 1:
            raise ValueError(f"block_size={block_size} must be at least 1.")
        given = [files] if isinstance(files, str | os.PathLike) else list(files)
        self._patterns = [os.fspath(name) for name in given]
        self._parse = parse
        self.block_size = block_size
        self._skips = on_corrupt == "skip"
        self._folder = None if index_folder is None else Path(index_folder)

    @property
    def num_samples(self) -> int:
        """Records that can be read, in all files. Makes the indexes that are missing.

        Raises:
            ValueError: If there is no such file, no record, or a file is compressed or damaged.
            OSError: If a file cannot be read.
        """
        return self._table.num_samples

    @property
    def num_skipped(self) -> int:
        """Damaged records that are left out; without those that could not be counted."""
        return len(self._table.skipped)

    @property
    def identity(self) -> str:
        """Names and places of all records."""
        table = self._table
        digest = hashlib.sha256("\n".join(path.name for path in table.paths).encode())
        for part in (table.first_records, table.skipped, table.offsets):
            digest.update(part.data)
        return f"{len(table.paths)} TFRecord files, {digest.hexdigest()[:16]}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is left out, if anything is."""
        return self._table.warnings

    def batches(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        """Reads and parses the records of each batch, in parallel."""
        table = self._table
        paths = tf.constant([os.fspath(path) for path in table.paths])
        with tf.device("CPU"):
            first_records = tf.constant(table.first_records)
            offsets = tf.constant(table.offsets)
            # How many records are skipped before a sample, by search among these.
            shifts = tf.constant(table.skipped - np.arange(len(table.skipped)))

        def read(samples: tf.Tensor) -> Any:
            numbers = samples
            if len(table.skipped):
                numbers += tf.searchsorted(shifts, samples, "right", tf.int64)
            files = tf.searchsorted(first_records, numbers, "right", tf.int64) - 1
            places = numbers + files  # Each file has one more offset than records.
            begins, ends = tf.gather(offsets, places), tf.gather(offsets, places + 1)
            batch = records.read(paths, files, begins, ends, _ADVICE)
            return batch if self._parse is None else _parsed(self._parse, batch)

        return indices.map(read, num_parallel_calls=tf.data.AUTOTUNE)

    @cached_property
    def _table(self) -> _Table:
        paths = _expand(self._patterns)
        found = index_files(paths, self._folder, verify=self._skips)
        for path, one in zip(paths, found, strict=True):
            if one.problem and (one.num_records == 0 or not self._skips):
                raise ValueError(f"{path}: {one.problem} {_cure(path, one)}")
        return _Table.of(paths, found)


_ADVICE = (
    "Write the file again, or leave damaged records out and have them counted: "
    'hvd.data.TFRecords(..., on_corrupt="skip").'
)


@dataclass(frozen=True)
class _Table:
    """Where each record of all files is.

    Attributes:
        paths: The files.
        first_records: Number of each file's first record, shape `[num_files]`.
        offsets: Where each record begins and each file's last one ends, file by file, shape
            `[num_records + num_files]`.
        skipped: Numbers of the records left out, ascending.
        warnings: What is left out, for humans.
    """

    paths: list[Path]
    first_records: NDArray[np.int64]
    offsets: NDArray[np.int64]
    skipped: NDArray[np.int64]
    warnings: tuple[str, ...]

    @property
    def num_samples(self) -> int:
        return len(self.offsets) - len(self.paths) - len(self.skipped)

    @staticmethod
    def of(paths: list[Path], found: list[Records]) -> _Table:
        counts = np.array([one.num_records for one in found], dtype=np.int64)
        first_records = np.cumsum(counts) - counts
        table = _Table(
            paths,
            first_records,
            np.concatenate([one.offsets for one in found]),
            np.concatenate(
                [first + one.damaged for first, one in zip(first_records, found, strict=True)]
            ),
            _warnings(paths, found),
        )
        if table.num_samples < 1:
            raise ValueError(
                f"{_named(paths)} have {counts.sum()} records, of which {len(table.skipped)} are "
                f"damaged; expected at least 1 that can be read. Write them again."
            )
        return table


def _parsed(parse: Parse, batch: tf.Tensor) -> Any:
    samples = parse(batch)
    leaves = tf.nest.flatten(samples)
    for leaf in leaves or [samples]:
        # None and Python's numbers have no shape.
        if tf.TensorShape(getattr(leaf, "shape", ())).rank == 0:
            raise ValueError(
                f"parse of hvd.data.TFRecords returned {leaf!r}, which has no samples. Return "
                f"tensors whose first dimension is that of the records."
            )
    checks = [
        tf.debugging.assert_equal(
            tf.shape(leaf, tf.int64)[0],
            tf.size(batch, tf.int64),
            message="parse of hvd.data.TFRecords must return as many samples as it gets records. "
            "Filter the records before they are written, or give samples a weight of 0.",
        )
        for leaf in leaves
    ]
    with tf.control_dependencies(checks):
        return without_lists(tf.nest.map_structure(tf.identity, samples))


def _expand(patterns: Sequence[str]) -> list[Path]:
    paths: list[Path] = []
    for pattern in patterns:
        names = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))
        if not names and "://" in pattern:
            raise ValueError(
                f"hvd.data.TFRecords reads files of a file system, not {pattern!r}. Mount or copy "
                f"them, or use hvd.data.Stream over a tf.data.TFRecordDataset."
            )
        paths += [Path(name) for name in names if not Path(name).is_dir()]
        if not names:
            raise ValueError(
                f"no file matches {pattern!r} (from {Path.cwd()}). Give paths or patterns of "
                f"TFRecord files that this host has."
            )
    if not paths:
        raise ValueError(
            f"{list(patterns)} has folders alone, no files. Give their files by a pattern, such as "
            f"{str(Path(patterns[0]) / '*.tfrecord')!r}."
        )
    twice = sorted({str(path) for path in paths if paths.count(path) > 1})
    if twice:
        raise ValueError(
            f"{', '.join(twice[:_MOST_NAMED])}: given more than once. Each sample is used once per "
            f"epoch; give each file once."
        )
    return paths


def _cure(path: Path, found: Records) -> str:
    """What to do about a file in which not all records can be found."""
    with path.open("rb") as file:
        start = file.read(2)
    if found.num_records == 0 and (start == b"\x1f\x8b" or start[:1] == b"\x78"):
        return (
            "It looks compressed, and compressed files cannot be read at any place. Write it "
            "without compression (a file system may compress it unseen), or read it from start to "
            'end: hvd.data.Stream(tf.data.TFRecordDataset(files, compression_type="GZIP")).'
        )
    if found.num_records == 0:
        return "It does not look like a TFRecord file. Check the pattern."
    return _ADVICE


def _warnings(paths: list[Path], found: list[Records]) -> tuple[str, ...]:
    num_damaged = sum(len(one.damaged) for one in found)
    lost_bytes = sum(one.lost_bytes for one in found)
    if not num_damaged and not lost_bytes:
        return ()
    places = []
    for path, one in zip(paths, found, strict=True):
        places += [f"{path} at offset {one.offsets[number]}" for number in one.damaged]
        if one.lost_bytes:
            places.append(f"{path} from offset {one.offsets[-1]} on ({one.lost_bytes} bytes)")
    named = "; ".join(places[:_MOST_NAMED]) + ("; ..." if len(places) > _MOST_NAMED else "")
    return (
        f"{num_damaged} damaged records are left out, and {lost_bytes} bytes in which no record "
        f"can be found: {named}. Write these files again.",
    )


def _named(paths: list[Path]) -> str:
    names = ", ".join(str(path) for path in paths[:_MOST_NAMED])
    return names + (", ..." if len(paths) > _MOST_NAMED else "")
