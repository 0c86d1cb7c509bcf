"""What a profile keeps, and what it refuses."""

from __future__ import annotations

import json

import pytest

from hvd_dbs.balancing.speed_points import SpeedPoint
from hvd_dbs.job.profile_file import ProfileEntry, check_profile, read_profile, write_profile
from hvd_dbs.job.state_file import read_state, write_state

SPEEDS = {"A100": [SpeedPoint(64, 0.1, 3)], "T4": [SpeedPoint(32, 0.3)]}


def test_what_is_written_is_read_for_the_model_and_global_batches_near(tmp_path):
    path = tmp_path / "cluster.json"
    assert read_profile(path, "m", 96) is None
    entry = ProfileEntry("m", 96, SPEEDS, {"T4": 80})
    write_profile(path, entry)
    assert read_profile(path, "m", 96) == read_profile(path, "m", 192) == entry
    for model, size in (("n", 96), ("m", 193), ("m", 47), ("", 96)):
        assert read_profile(path, model, size) is None
    check_profile(path)


def test_trainings_are_merged(tmp_path):
    path = tmp_path / "cluster.json"
    write_profile(path, ProfileEntry("m", 96, SPEEDS))
    write_profile(path, ProfileEntry("m", 1000, {"T4": [SpeedPoint(500, 4.0)]}))
    new = {"T4": [SpeedPoint(30, 0.29)], "V100": [SpeedPoint(40, 0.1)]}
    write_profile(path, ProfileEntry("m", 128, new))
    assert read_profile(path, "m", 110).speeds == {
        "A100": SPEEDS["A100"],
        "T4": [SpeedPoint(30, 0.29), SpeedPoint(32, 0.3)],
        "V100": new["V100"],
    }
    assert read_profile(path, "m", 1000).speeds == {"T4": [SpeedPoint(500, 4.0)]}


def test_the_newest_models_are_kept(tmp_path):
    path = tmp_path / "cluster.json"
    for model in (*range(20), 5, 20):  # The fifth is trained again.
        write_profile(path, ProfileEntry(str(model), 96, SPEEDS))
    kept = [model for model in range(21) if read_profile(path, str(model), 96)]
    assert kept == [*range(5, 21)]
    write_profile(path, ProfileEntry("21", 96, SPEEDS))
    assert read_profile(path, "5", 96) and not read_profile(path, "6", 96)


KIND = "hvd_dbs profile"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("weights", "is not valid JSON, or is cut short"),
        ("[]", "is not a file that hvd_dbs wrote; expected one of kind 'hvd_dbs profile'"),
        ({"format": 2}, "has format 2; this version reads 1"),
        ({"format": 1}, r"holds what cannot be: KeyError\('models'\)"),
        ({"format": 1, "models": [3]}, "holds what cannot be"),
        (
            {
                "format": 1,
                "models": [
                    {"model": "m", "global_batch_size": 96, "speeds": {"A100": [[64, -1.0, 1]]}}
                ],
            },
            "-1.0 s is not how long a step takes",
        ),
    ],
)
def test_what_is_no_profile_is_named_and_left_as_it_is(tmp_path, content, text):
    path = tmp_path / "cluster.json"
    if isinstance(content, str):
        path.write_text(content)
    else:
        write_state(path, content, KIND)
    before = path.read_text()
    for use in (
        check_profile,
        lambda path: read_profile(path, "m", 96),
        lambda path: write_profile(path, ProfileEntry("m", 96, SPEEDS)),
    ):
        with pytest.raises(ValueError, match=text):
            use(path)
    assert path.read_text() == before


def test_a_training_state_is_no_profile(tmp_path):
    path = tmp_path / "state.json"
    write_state(path, {"format": 1, "models": []})
    with pytest.raises(ValueError, match="not a file that hvd_dbs wrote"):
        check_profile(path)
    assert json.loads(path.read_text()) and read_state(path)


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"missing is no folder that this process may write to"):
        check_profile(tmp_path / "missing" / "cluster.json")
    with pytest.raises(ValueError, match=r"profile='.*' is a folder"):
        check_profile(tmp_path)
