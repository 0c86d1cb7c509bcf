"""A state is read as it was written, or not at all."""

from __future__ import annotations

import json
import resource

import pytest

from hvd_dbs.job.state_file import read_state, write_state

STATE = {"balancer": {"epoch": 3, "shares": [0.1, 1e-9]}, "weights": "a.weights.h5"}


def test_a_state_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "state.json"
    for state in ({}, STATE):
        write_state(path, state)
        assert read_state(path) == state
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_every_truncation_and_every_edit_is_noticed(tmp_path):
    path = tmp_path / "state.json"
    write_state(path, STATE)
    content = path.read_text()
    for length in range(len(content)):
        path.write_text(content[:length])
        with pytest.raises(ValueError, match="cut short"):
            read_state(path)
    for before, after in (('"epoch": 3', '"epoch": 4'), ("0.1", "0.2"), ("a.weights", "b.weights")):
        path.write_text(content.replace(before, after))
        with pytest.raises(ValueError, match="its checksum is another one"):
            read_state(path)


@pytest.mark.parametrize("content", ["[]", "{}", "3", json.dumps({"kind": "other", "state": {}})])
def test_a_foreign_file_is_named(tmp_path, content):
    path = tmp_path / "state.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"state\.json is not a file that hvd_dbs wrote"):
        read_state(path)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.json cannot be read"):
        read_state(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\x80\xff")
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_state(tmp_path / "bytes.json")


def test_a_full_disk_keeps_the_old_state(tmp_path):
    path = tmp_path / "state.json"
    write_state(path, STATE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_state(path, {**STATE, "more": "x" * 9000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_state(path) == STATE
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]
