"""Records in files are read by number, each once, and what is wrong with a file is said."""

from __future__ import annotations

import gzip
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.data import TFRecords
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import make_dataset
from hvd_dbs.data.records import index as record_index
from hvd_dbs.data.records import reader as records
from hvd_dbs.data.records import reference_reader
from hvd_dbs.ops import native

RECORDS = [
    np.random.default_rng(i).bytes(size) for i, size in enumerate([0, 3, 40000, 100, 5, 17000, 1])
]


@pytest.fixture(params=["native", "reference"])
def native_mode(request, monkeypatch):
    monkeypatch.setenv("HVD_DBS_NATIVE", "1" if request.param == "native" else "0")
    if request.param == "native" and native.loaded() is None:
        pytest.skip(native.reason_for_absence())
    return request.param


def write(path, contents):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in contents:
            writer.write(content)
    return path


def read_all(source, batch_size=3):
    stage = IndexStage(source.num_samples, None, 0, (batch_size,))
    return [record for batch in make_dataset(source, stage) for record in batch.numpy()]


def test_records_come_as_they_were_written(tmp_path, native_mode):
    source = TFRecords([write(tmp_path / "one", RECORDS), write(tmp_path / "two", RECORDS[::-1])])
    assert read_all(source) == RECORDS + RECORDS[::-1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many samples as it gets"):
        read_all(TFRecords(tmp_path / "one", lambda batch: {"first": batch[:1]}))


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "returned None"),
        (("record", None), "returned 'record'"),
        ({}, "returned {}"),
        ((np.arange(3), 7), "returned 7"),
    ],
)
def test_samples_need_a_dimension(tmp_path, native_mode, returned, text):
    source = TFRecords(write(tmp_path / "one", RECORDS), lambda batch: returned)
    with pytest.raises(ValueError, match=f"{text}, which has no samples"):
        read_all(source)


def test_samples_of_any_kind_are_counted(tmp_path, native_mode):
    path = write(tmp_path / "one", RECORDS)
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many samples as it gets"):
        read_all(TFRecords(path, lambda batch: np.arange(2)))
    words = TFRecords(path, tf.strings.split)
    stage = IndexStage(words.num_samples, None, 0, (3,))
    assert next(iter(make_dataset(words, stage))).nrows() == 3


def test_a_kept_index_is_used_as_long_as_it_fits(tmp_path, monkeypatch):
    file = write(tmp_path / "data", RECORDS)
    scans = []
    monkeypatch.setattr(
        record_index, "scan", lambda *given: scans.append(given) or records.scan(*given)
    )

    def num_scans(source):
        before = len(scans)
        assert read_all(source) == RECORDS
        return len(scans) - before

    assert num_scans(TFRecords(file)) == 1
    kept = record_index.index_path(file, None)
    assert sorted(tmp_path.iterdir()) == sorted([file, kept])
    assert num_scans(TFRecords(file)) == 0
    assert num_scans(TFRecords(file, on_corrupt="skip")) == 1  # It has to look at the data.
    assert num_scans(TFRecords(file, on_corrupt="skip")) == 0
    assert num_scans(TFRecords(file)) == 0
    content = kept.read_bytes()
    for damaged in (b"", content[:100], content[:-8], content[:-1] + b"\x01", b"\x93NUMPY"):
        kept.write_bytes(damaged)
        assert num_scans(TFRecords(file)) == 1
    os.utime(file, ns=(0, 0))
    assert num_scans(TFRecords(file)) == 1
    folder = tmp_path / "indexes"
    assert num_scans(TFRecords(file, index_folder=folder)) == 1
    assert num_scans(TFRecords(file, index_folder=folder)) == 0
    assert [path.suffix for path in folder.iterdir()] == [".hvd_dbs-index"]
    kept.unlink()
    monkeypatch.setattr(record_index.os, "access", lambda *_: False)
    assert num_scans(TFRecords(file)) == 1
    assert not kept.exists()


def test_files_are_scanned_once_by_all_who_start_together(tmp_path, monkeypatch):
    paths = [write(tmp_path / str(i), RECORDS) for i in range(12)]
    scans = []
    start = threading.Barrier(4)

    def slow_scan(path, verify):
        scans.append(path)
        time.sleep(0.05)  # So that the others come meanwhile.
        return records.scan(path, verify)

    monkeypatch.setattr(record_index, "scan", slow_scan)

    def num_records(_):
        start.wait(timeout=10)
        return [found.num_records for found in record_index.index_files(paths, None, False)]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(num_records, range(4))) == [[len(RECORDS)] * 12] * 4
    assert sorted(scans) == sorted(paths)


def test_nobody_waits_for_ever_for_a_lock(tmp_path, monkeypatch):
    file = write(tmp_path / "data", RECORDS)
    with record_index._locked(file, 0):
        monkeypatch.setattr(record_index, "_PATIENCE_SECONDS", 0.1)
        assert TFRecords(file).num_samples == len(RECORDS)


def offset_of(number):
    return sum(len(record) + 16 for record in RECORDS[:number])


def damage(file, offset):
    content = bytearray(file.read_bytes())
    content[offset] ^= 1
    file.write_bytes(content)


def test_a_damaged_record_is_an_error_that_says_where(tmp_path, native_mode):
    file = write(tmp_path / "data", RECORDS)
    damage(file, offset_of(3) + 20)
    with pytest.raises(tf.errors.OpError) as raised:
        read_all(TFRecords(file))
    message = str(raised.value)
    for part in (str(file), f"offset {offset_of(3)}", "do not match", 'on_corrupt="skip"'):
        assert part in message
    damage(file, offset_of(5) + 2)
    with pytest.raises(ValueError, match=f"{file}: the length of the record at offset"):
        TFRecords(file).num_samples  # noqa: B018


def test_damaged_records_are_left_out_on_request(tmp_path, native_mode):
    first, second = write(tmp_path / "1", RECORDS), write(tmp_path / "2", RECORDS)
    damage(first, offset_of(0) + 12)
    damage(first, offset_of(3) + 20)
    damage(second, offset_of(2) + 39000)
    with second.open("r+b") as file:
        file.truncate(offset_of(6) + 3)
    expected = [RECORDS[i] for i in (1, 2, 4, 5, 6, 0, 1, 3, 4, 5)]
    for _ in range(2):  # By scanning, and by a kept index.
        source = TFRecords(str(tmp_path / "?"), on_corrupt="skip")
        assert read_all(source) == expected
        assert source.num_samples == 10
        assert source.num_skipped == 3
        (warning,) = source.warnings
        assert warning.startswith("3 damaged records are left out, and 3 bytes")
        assert f"{second} at offset {offset_of(2)}" in warning
    with pytest.raises(ValueError, match=f"{second}: the record at offset {offset_of(6)} is cut"):
        TFRecords(str(tmp_path / "?")).num_samples  # noqa: B018


def test_a_file_that_changes_after_it_was_indexed_is_an_error(tmp_path, native_mode):
    file = write(tmp_path / "data", RECORDS)
    source = TFRecords(file)
    assert source.num_samples == len(RECORDS)
    write(file, RECORDS[::-1])
    with pytest.raises(tf.errors.OpError, match="when the file was indexed"):
        read_all(source)
    file.unlink()
    with pytest.raises(tf.errors.OpError, match="No such file"):
        read_all(source)


def test_what_cannot_be_indexed_says_what_to_do(tmp_path, native_mode):
    plain = write(tmp_path / "plain", RECORDS)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "text").write_text("This is no such file. " * 10)
    write(tmp_path / "empty", [])
    for name, options, text in [
        ("packed.gz", {}, "looks compressed.*hvd.data.Stream"),
        ("packed.gz", {"on_corrupt": "skip"}, "looks compressed"),
        ("text", {}, "does not look like a TFRecord file"),
        ("empty", {}, "expected at least 1"),
        ("nothing-*", {}, "no file matches"),
    ]:
        with pytest.raises(ValueError, match=text):
            TFRecords(tmp_path / name, **options).num_samples  # noqa: B018
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"has folders alone.*such as '.*folder/\*\.tfrecord'"):
        TFRecords(tmp_path / "folder").num_samples  # noqa: B018
    with pytest.raises(ValueError, match="Mount or copy"):
        TFRecords("gs://bucket/data-*").num_samples  # noqa: B018
    with pytest.raises(ValueError, match="given more than once"):
        TFRecords([plain, str(tmp_path / "pl*")]).num_samples  # noqa: B018
    with pytest.raises(ValueError, match="block_size=0"):
        TFRecords(plain, block_size=0)
    with pytest.raises(ValueError, match="on_corrupt='ignore' is unknown"):
        TFRecords(plain, on_corrupt="ignore")


def test_the_twin_is_the_native_library(tmp_path):
    if native.loaded() is None:
        pytest.skip(native.reason_for_absence())
    file = write(tmp_path / "data", RECORDS)
    whole = file.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(60):
        content = bytearray(whole[: random.integers(1, len(whole) + 1)])
        for place in random.integers(0, len(content), random.integers(0, 3)):
            content[place] ^= 1 << random.integers(0, 8)
        for offset in random.choice([0, 1, 3, 5]) * np.ones(random.integers(0, 2), int):
            content[offset_of(offset) % len(content)] ^= 1
        file.write_bytes(content)
        for verify in (False, True):
            found = [scanned(file, verify, mode) for mode in ("1", "0")]
            for name in ("offsets", "damaged", "lost_bytes", "problem"):
                ours, references = (getattr(one, name) for one in found)
                np.testing.assert_array_equal(ours, references, err_msg=name)


def scanned(file, verify, mode):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVD_DBS_NATIVE", mode)
        return records.scan(file, verify)


def test_the_twins_checksums_are_those_of_the_standard():
    for data, checksum in [
        (b"", 0x00000000),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ]:
        rotated = (checksum >> 15 | checksum << 17) + 0xA282EAD8
        assert reference_reader.masked_crc32c(data) == rotated & 0xFFFFFFFF
