"""TFRecord files in Python and NumPy: what `records` does without the native library."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

HEADER = 12
"""Bytes of a record before its data: 8 of length, 4 of the length's checksum."""
OVERHEAD = 16
"""Bytes of a record that are not data: the header, and 4 of the data's checksum."""

DONE, CUT_OFF, BAD_LENGTH, BAD_DATA = range(4)
"""Why a scan stopped; as the native library numbers it."""

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_CHUNK = 256 * 1024
_LONG_RECORD = 16 * 1024
_HEADER_CHUNK = 64


def masked_crc32c(data: bytes) -> int:
    """The checksum of a TFRecord file over some bytes: CRC-32C, rotated, plus a constant.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    state = _shift(0xFFFFFFFF, len(data)) ^ _reduce(np.frombuffer(data, dtype=np.uint8))
    crc = ~state & 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def scan(
    file: int, size: int, offset: int, capacity: int, verify: bool
) -> tuple[NDArray[np.int64], int, int]:
    """Finds at most `capacity` records from an offset on; see `records.scan`.

    Returns:
        Offsets of the records found, shape `[found]`; the offset after the last; why it stopped.
    """
    offsets: list[int] = []
    chunk, begin = b"", 0
    fetch = _CHUNK
    while offset < size and len(offsets) < capacity:
        if not begin <= offset <= begin + len(chunk) - HEADER:
            begin, chunk = offset, os.pread(file, fetch, offset)
        header = chunk[offset - begin : offset - begin + HEADER]
        if len(header) < HEADER:
            return _found(offsets), offset, CUT_OFF
        length, checksum = struct.unpack("<QI", header)
        if _length_checksum(header[:8]) != checksum:
            return _found(offsets), offset, BAD_LENGTH
        if length > size - offset - OVERHEAD:
            return _found(offsets), offset, CUT_OFF
        offsets.append(offset)
        data_offset, offset = offset + HEADER, offset + OVERHEAD + length
        fetch = _CHUNK if length < _LONG_RECORD else _HEADER_CHUNK
        if verify:
            data = os.pread(file, length + 4, data_offset)
            if masked_crc32c(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
                return _found(offsets), offset, BAD_DATA
    return _found(offsets), offset, DONE


def read(
    paths: Sequence[bytes],
    files: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> list[bytes]:
    """The data of records, verified; see `records.read`.

    Raises:
        ValueError: If a record is not what it was when the file was indexed, or damaged.
        OSError: If a file cannot be read.
    """
    records: list[bytes] = []
    breaks = np.flatnonzero((files[1:] != files[:-1]) | (begins[1:] != ends[:-1])) + 1
    for run in np.split(np.arange(len(files)), breaks):
        path = paths[files[run[0]]].decode()
        base = int(begins[run[0]])
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            chunk = b"".join(_read_fully(descriptor, int(ends[run[-1]]) - base, base))
        finally:
            os.close(descriptor)
        for begin, end in zip(begins[run].tolist(), ends[run].tolist(), strict=True):
            wrong, data = _unpack(chunk[begin - base : end - base], end - begin)
            if wrong:
                raise ValueError(f"{path}: record at offset {begin}: {wrong}")
            records.append(data)
    return records


def _unpack(record: bytes, size: int) -> tuple[str, bytes]:
    if len(record) < size:
        return "the file ends before it or those after it.", b""
    if struct.unpack("<Q", record[:8])[0] != size - OVERHEAD:
        return "its length is not what it was when the file was indexed.", b""
    data = record[HEADER:-4]
    if masked_crc32c(data) != struct.unpack("<I", record[-4:])[0]:
        return "its data do not match their checksum.", b""
    return "", data


def _read_fully(descriptor: int, count: int, offset: int) -> Iterator[bytes]:
    while count > 0:
        part = os.pread(descriptor, count, offset)
        if not part:
            return
        yield part
        count, offset = count - len(part), offset + len(part)


def _found(offsets: Sequence[int]) -> NDArray[np.int64]:
    return np.array(offsets, dtype=np.int64)


@functools.lru_cache(maxsize=4096)
def _length_checksum(length: bytes) -> int:
    return masked_crc32c(length)


@functools.cache
def _byte_table() -> NDArray[np.uint32]:
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, states >> 1 ^ _POLYNOMIAL, states >> 1).astype(np.uint32)
    return states


@functools.cache
def _zeros(level: int) -> NDArray[np.uint32]:
    """What a state becomes when 2**level zero bytes follow: by byte of the state, `[4, 256]`."""
    states = (np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])).T
    states = np.ascontiguousarray(states.T)
    if level == 0:
        return states >> 8 ^ _byte_table()[states & 0xFF]
    return _follow(_follow(states, level - 1), level - 1)


def _follow(states: NDArray[np.uint32], level: int) -> NDArray[np.uint32]:
    """States after 2**level more zero bytes; a checksum is linear, so bytes are looked up apart."""
    table = _zeros(level)
    result: NDArray[np.uint32] = (
        table[0][states & 0xFF]
        ^ table[1][states >> 8 & 0xFF]
        ^ table[2][states >> 16 & 0xFF]
        ^ table[3][states >> 24]
    )
    return result


def _shift(state: int, count: int) -> int:
    """A state after `count` zero bytes."""
    states = np.array([state], dtype=np.uint32)
    for level in range(count.bit_length()):
        if count >> level & 1:
            states = _follow(states, level)
    return int(states[0])


def _reduce(data: NDArray[np.uint8]) -> int:
    """The state after bytes that follow a state of zero: neighbours are joined, level by level."""
    states = _byte_table()[data]
    level = 0
    while states.size > 1:
        if states.size % 2:  # Zero bytes in front change nothing.
            states = np.concatenate([np.zeros(1, np.uint32), states])
        states = _follow(states[0::2], level) ^ states[1::2]
        level += 1
    return int(states[0]) if states.size else 0
