"""Where the records of TFRecord files are: found by one scan of a file, and kept for the next job.

All ranks of a host, and all hosts that share a folder, share what is kept: each file is scanned by
whoever locks it first, while the others go on with other files. An index is written under another
name and renamed, and is used only as long as its file has the same size and modification time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.data.records.reader import Records, scan

_PARSER = threading.Lock()
"""NumPy parses a header with `ast`, which fails in several threads at once (CPython 3.11)."""

_FORMAT = 1
_HEADER = 7
_NUM_THREADS = 8
_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 600.0
"""How long somebody else may take to scan a file; after that it is scanned twice."""


def index_files(paths: Sequence[Path], folder: Path | None, verify: bool) -> list[Records]:
    """The records of each file, scanned where no index is kept yet.

    Args:
        paths: The files.
        folder: Where indexes are kept; None: each beside its file. Where nobody may write, nothing
            is kept.
        verify: Whether damaged records must be known. Then a scan reads everything.

    Raises:
        OSError: If a file cannot be read, or `folder` cannot be made.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    # Scans of several files wait for the disk together, and need no lock of Python's.
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        return list(threads.map(lambda path: _index_file(path, folder, verify), paths))


def index_path(path: Path, folder: Path | None) -> Path:
    """Where the index of a file is kept."""
    if folder is None:
        return path.with_name(f".{path.name}.hvd_dbs-index")
    place = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
    return folder / f"{path.name}.{place}.hvd_dbs-index"


def _index_file(path: Path, folder: Path | None, verify: bool) -> Records:
    kept = index_path(path, folder)
    found = _load(kept, path, verify)
    if found is not None:
        return found
    if not os.access(kept.parent, os.W_OK):
        return scan(path, verify)
    with _locked(path, _PATIENCE_SECONDS):
        found = _load(kept, path, verify)  # Whoever held the lock has left it.
        if found is None:
            before = path.stat()
            found = scan(path, verify)
            # A file in which nothing is found is an error, and no index of it is of use.
            if not found.problem or (verify and found.num_records):
                _save(kept, found, before, verify)
        return found


@contextlib.contextmanager
def _locked(path: Path, patience: float) -> Iterator[None]:
    """Holds a lock on the file itself, which the system takes back from whoever ends.

    Where files cannot be locked, or somebody holds the lock for too long, work is done twice;
    nothing else depends on the lock.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        give_up = time.monotonic() + patience
        while not _try_lock(file) and time.monotonic() < give_up:
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(file)


def _try_lock(file: int) -> bool:
    """Whether there is nothing to wait for."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _save(kept: Path, records: Records, file: os.stat_result, verified: bool) -> None:
    """Keeps an index; a full disk or a folder that vanished only means that it is not kept."""
    body = np.concatenate([records.damaged, records.offsets])
    header = [file.st_size, file.st_mtime_ns, verified, records.lost_bytes, len(records.damaged)]
    head = np.array([_FORMAT, *header, zlib.crc32(body.data)], dtype=np.int64)
    temporary = kept.with_name(f"{kept.name}.{os.uname().nodename}.{os.getpid()}")
    temporary = temporary.with_name(f"{temporary.name}.{threading.get_ident()}")
    try:
        with temporary.open("wb") as stream:
            np.save(stream, np.concatenate([head, body]), allow_pickle=False)
        temporary.replace(kept)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _load(kept: Path, path: Path, verify: bool) -> Records | None:
    """A kept index, or None if there is none that is whole, fits the file and knows enough."""
    try:
        with kept.open("rb") as stream, _PARSER:
            content = np.load(stream, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if content.dtype != np.int64 or content.ndim != 1 or len(content) <= _HEADER:
        return None
    file = path.stat()
    form, size, modified, verified, lost_bytes, num_damaged, checksum = content[:_HEADER].tolist()
    body: NDArray[np.int64] = content[_HEADER:]
    fits = (form, size, modified) == (_FORMAT, file.st_size, file.st_mtime_ns)
    if not fits or checksum != zlib.crc32(body.data):
        return None
    # Damage is looked at again by those who will not have it, to say what it is.
    knows_enough = verified if verify else not lost_bytes and not num_damaged
    return Records(body[num_damaged:], body[:num_damaged], lost_bytes) if knows_enough else None
