"""TFRecord files: where their records are, and reading those that are asked for.

A record is 8 bytes of length, 4 of the length's checksum, the data and 4 of the data's checksum;
records follow each other without gaps, so that one pass over the lengths finds them all.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_dbs.data.records import reference_reader
from hvd_dbs.ops import native

_CAPACITY = 1 << 16
_UNREADABLE = reference_reader.BAD_DATA + 1


@dataclass(frozen=True)
class Records:
    """The records of one file.

    Attributes:
        offsets: Where each begins, and after the last one, shape `[num_records + 1]`.
        damaged: Numbers of those whose data do not match their checksum, ascending; only
            looked for on request.
        lost_bytes: Bytes after the last offset, in which no record could be found.
        problem: Why not, for humans; an empty text if nothing is lost.
    """

    offsets: NDArray[np.int64]
    damaged: NDArray[np.int64]
    lost_bytes: int = 0
    problem: str = ""

    @property
    def num_records(self) -> int:
        """Records found, the damaged ones too."""
        return len(self.offsets) - 1


def scan(path: Path, verify: bool) -> Records:
    """Finds the records of a file.

    Args:
        path: The file.
        verify: Whether to read all data and compare them with their checksums. Otherwise only
            the lengths are read and verified, as far as that is less than reading everything.

    Raises:
        OSError: If the file cannot be read.
    """
    parts: list[NDArray[np.int64]] = []
    damaged: list[int] = []
    num_records, offset, status = 0, 0, reference_reader.DONE
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        while offset < size and status in (reference_reader.DONE, reference_reader.BAD_DATA):
            found, offset, status = _scan_some(file, size, offset, verify)
            parts.append(found)
            num_records += len(found)
            if status == reference_reader.BAD_DATA:
                damaged.append(num_records - 1)
    finally:
        os.close(file)
    return Records(
        np.concatenate([*parts, np.array([offset], dtype=np.int64)]),
        np.array(damaged, dtype=np.int64),
        size - offset,
        _problem(status, offset, size),
    )


def read(
    paths: tf.Tensor, files: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor, advice: str
) -> tf.Tensor:
    """Reads records; consecutive ones of a file at once, and nothing else.

    Args:
        paths: Of the files, string of shape `[num_files]`.
        files: Each record's file, as its place in `paths`, int64 of shape `[num_records]`.
        begins: Where each record begins, int64 of shape `[num_records]`.
        ends: Where each ends, likewise.
        advice: What to do about a file that cannot be read; put after the error.

    Returns:
        The data of the records, string of shape `[num_records]`. In the graph a DataLossError
        or UnknownError names file, offset and what is wrong.
    """
    library = native.loaded()
    if library is not None:
        return library.ops.hvd_dbs_read_records(paths, files, begins, ends, advice=advice)

    def read_now(*arguments: Any) -> NDArray[np.object_]:
        try:
            return np.array(reference_reader.read(*arguments), dtype=np.object_)
        except (ValueError, OSError) as error:
            raise ValueError(f"{error} {advice}") from error

    records = tf.numpy_function(read_now, [paths, files, begins, ends], tf.string)
    return tf.ensure_shape(records, files.shape)


def _scan_some(
    file: int, size: int, offset: int, verify: bool
) -> tuple[NDArray[np.int64], int, int]:
    library = native.loaded()
    if library is None:
        return reference_reader.scan(file, size, offset, _CAPACITY, verify)
    offsets = np.empty(_CAPACITY, dtype=np.int64)
    end, status = ctypes.c_int64(), ctypes.c_int32()
    found = library.functions.hvd_dbs_scan_records(
        file,
        size,
        offset,
        offsets.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)),
        _CAPACITY,
        verify,
        ctypes.byref(end),
        ctypes.byref(status),
    )
    if status.value == _UNREADABLE:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"offset {end.value}")
    return offsets[:found].copy(), end.value, status.value


def _problem(status: int, offset: int, size: int) -> str:
    if status == reference_reader.CUT_OFF:
        return f"the record at offset {offset} is cut off: the file ends at {size} bytes."
    if status == reference_reader.BAD_LENGTH:
        return f"the length of the record at offset {offset} does not match its checksum."
    return ""
