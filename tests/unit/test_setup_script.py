"""scripts/setup.sh: which versions of TensorFlow, and which settings, it knows."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from hvd_dbs.keras_stack import OLDEST_TENSORFLOW

ROOT = Path(__file__).resolve().parents[2]
PINS = sorted((ROOT / "scripts" / "tensorflow").glob("*.txt"))
DEFAULT = re.search(r"^tensorflow==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.M)[1]
KNOWN = [*(path.stem for path in PINS), DEFAULT]


def setup(*arguments, **variables):
    return subprocess.run(
        [ROOT / "scripts" / "setup.sh", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["2.15"], [""], ["--force"], []])
def test_an_unknown_version_is_an_error_that_lists_the_known_ones(arguments):
    # It ends before it looks at, or changes, any environment.
    ended = setup("--tensorflow", *arguments)
    assert ended.returncode == 1
    assert ", ".join(KNOWN) in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["HVD_DBS_VARIANT", "HVD_DBS_MPI", "HVD_DBS_NCCL"])
def test_an_unknown_setting_is_an_error_that_names_it(name):
    ended = setup(**{name: "2"})
    assert ended.returncode == 1
    assert f"{name}=2 is unknown. Use " in ended.stderr


def test_the_help_lists_the_known_versions():
    assert ", ".join(KNOWN) in setup("--help").stdout


def test_the_oldest_known_version_is_the_oldest_supported_one():
    assert KNOWN[0] == OLDEST_TENSORFLOW


@pytest.mark.parametrize("path", PINS, ids=lambda path: path.stem)
def test_pins_are_for_one_release_and_name_their_pythons(path):
    text = path.read_text()
    versions = set(re.findall(r"^tensorflow(?:-cpu)?==(\S+)$", text, re.M))
    assert len(versions) == 1
    assert versions.pop().startswith(f"{path.stem}.")
    # The form in which scripts/setup.sh reads them.
    assert re.search(r"^# Pythons:.* 3\.\d+$", text, re.M)
    assert re.search(r"^# Extras left out: \S+", text, re.M)
