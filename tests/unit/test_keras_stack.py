"""On a stack that cannot train, importing hvd_dbs.keras ends with the cause and the fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_dbs.keras_stack import OLDEST_KERAS, OLDEST_TENSORFLOW

ROOT = Path(__file__).resolve().parents[2]

# What comes next where all fits: there is no Horovod.
NO_ERROR = "No module named 'horovod'"
FITS = {"tensorflow": "2.21.0", "keras": "3.15.1"}
CHECK = """
import builtins, sys
try:
    import hvd_dbs.{part}
except ImportError as error:
    print(error)
"""


def error_of(folder, part, packages, settings, broken=""):
    """What the check prints in an environment that has nothing but fake packages."""
    for name, version in packages.items():
        (folder / name).mkdir()
        text = f"__version__ = {version!r}\n" if name != broken else "raise RuntimeError('a bug')\n"
        (folder / name / "__init__.py").write_text(text)
        metadata = folder / f"{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (folder / "hvd_dbs").symlink_to(ROOT / "hvd_dbs")
    environment = {name: text for name, text in os.environ.items() if "KERAS" not in name}
    environment |= {"KERAS_HOME": str(folder), **settings, "PYTHONPATH": str(folder)}
    # -S: without the site-packages of these tests.
    command = [sys.executable, "-S", "-c", CHECK.format(part=part)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("packages", "settings", "cause", "fix"),
    [
        (FITS | {"keras": "2.15.0"}, {}, "Keras 2.15.0 is older", f"keras>={OLDEST_KERAS}"),
        (FITS | {"keras": "3.0.5"}, {}, "Keras 3.0.5 is older", f"keras>={OLDEST_KERAS}"),
        (FITS, {"TF_USE_LEGACY_KERAS": "1"}, "tf_keras", "unset TF_USE_LEGACY_KERAS"),
        (
            FITS | {"tf_keras": "2.16.0"},
            {"TF_USE_LEGACY_KERAS": "true"},
            "tf.keras is Keras 2",
            "unset TF_USE_LEGACY_KERAS",
        ),
        (FITS, {"KERAS_BACKEND": "jax"}, "backend is jax", "KERAS_BACKEND=tensorflow"),
        ({"tensorflow": "2.21.0"}, {}, "Keras is not installed", "pip install"),
        ({"keras": "3.15.1"}, {}, "TensorFlow is not installed", "pip install tensorflow"),
        (FITS | {"tensorflow": "2.15.1"}, {}, f"older than {OLDEST_TENSORFLOW}", "Horovod"),
    ],
    ids=str,
)
def test_the_cause_and_the_fix_of_what_does_not_fit(tmp_path, packages, settings, cause, fix):
    error = error_of(tmp_path, "keras", packages, settings)
    assert "hvd_dbs.keras cannot be imported: " in error
    assert cause in error.partition(" Fix: ")[0]
    assert fix in error.partition(" Fix: ")[2]
    assert "\n" not in error


def test_a_backend_from_the_configuration_file_counts(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert "backend is torch" in error_of(tmp_path, "keras", FITS, {})


def test_the_variable_counts_more_than_the_configuration_file(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert error_of(tmp_path, "keras", FITS, {"KERAS_BACKEND": "tensorflow"}) == NO_ERROR


def test_a_keras_that_does_not_import_gives_its_own_error(tmp_path):
    error = error_of(tmp_path, "keras", FITS, {}, broken="keras")
    assert "its import fails (RuntimeError: a bug)" in error


@pytest.mark.parametrize("part", ["keras", "tensorflow"])
def test_a_stack_that_fits_is_not_refused(tmp_path, part):
    assert error_of(tmp_path, part, FITS, {}) == NO_ERROR


@pytest.mark.parametrize(
    ("packages", "settings", "cause"),
    [
        (FITS, {"TF_USE_LEGACY_KERAS": "1"}, "tf_keras"),
        (FITS, {"KERAS_BACKEND": "jax"}, "backend is jax"),
        ({"tensorflow": "2.21.0"}, {}, "Keras is not installed"),
        # Loops of one's own do without Keras 3.
        (FITS | {"tf_keras": "2.16.0"}, {"TF_USE_LEGACY_KERAS": "1"}, NO_ERROR),
    ],
    ids=str,
)
def test_own_loops_need_what_horovod_imports(tmp_path, packages, settings, cause):
    error = error_of(tmp_path, "tensorflow", packages, settings)
    assert cause in error
