"""Which Keras this process trains with, and whether hvd_dbs works on it.

This module imports neither, and `look` neither: where they cannot be imported, their own errors
often hide the cause.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTED = {"TensorFlow": ("2.16", "2.18", "2.21"), "NumPy": ("1.26", "2.0", "2.4")}
"""The versions that tests ran on, oldest first: those of the table "What was run" in
docs/versions.md. `hvd-dbs doctor` calls these supported, and no others."""

OLDEST_TENSORFLOW = TESTED["TensorFlow"][0]
"""An older TensorFlow is refused; one between those tested is not."""

OLDEST_KERAS = "3.12"
"""The oldest Keras that hvd_dbs is tested on."""

KERAS_REQUIREMENT = f"'keras>={OLDEST_KERAS}'"
INSTALL_KERAS = f"pip install {KERAS_REQUIREMENT}"
INSTALL_TENSORFLOW = "pip install tensorflow-cpu, or 'tensorflow[and-cuda]' for NVIDIA GPUs"


@dataclass(frozen=True)
class KerasStack:
    """What decides which Keras is imported.

    Attributes:
        keras: Version of Keras; empty where it is not installed, "unknown" where it gives none.
        backend: The backend that Keras is configured for.
        uses_legacy_keras: Whether TensorFlow is asked to take Keras 2 for `tf.keras`.
        has_legacy_keras: Whether that Keras 2, the package tf_keras, is installed.
    """

    keras: str = OLDEST_KERAS
    backend: str = "tensorflow"
    uses_legacy_keras: bool = False
    has_legacy_keras: bool = False


@dataclass(frozen=True)
class Problem:
    """One thing that does not fit.

    Attributes:
        text: What it is.
        fix: What to do about it.
        is_fatal: Whether it also keeps `hvd_dbs.tensorflow` from working, not only `hvd_dbs.keras`.
    """

    text: str
    fix: str
    is_fatal: bool


def look(environment: Mapping[str, str] = os.environ) -> KerasStack:
    """Reads packages, environment variables and Keras's configuration file."""
    return KerasStack(
        keras=_keras_version(),
        backend=_backend(environment),
        uses_legacy_keras=environment.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"),
        has_legacy_keras=_is_installed("tf_keras"),
    )


def problems_of_version(stack: KerasStack) -> Iterator[Problem]:
    """Yields what does not fit in the installed Keras."""
    if not stack.keras:
        yield Problem("Keras is not installed", INSTALL_KERAS, is_fatal=True)
    elif stack.keras != "unknown" and numbers_of(stack.keras) < numbers_of(OLDEST_KERAS):
        text = f"Keras {stack.keras} is older than {OLDEST_KERAS}"
        yield Problem(text, INSTALL_KERAS, is_fatal=False)


def problems_of_settings(stack: KerasStack) -> Iterator[Problem]:
    """Yields which settings make Keras unfit."""
    if stack.uses_legacy_keras:
        text = "TF_USE_LEGACY_KERAS is set: tf.keras is Keras 2, which hvd_dbs.keras cannot train"
        if not stack.has_legacy_keras:
            text = "TF_USE_LEGACY_KERAS is set, but tf_keras, which it asks for, is not installed"
        yield Problem(text, "unset TF_USE_LEGACY_KERAS", is_fatal=not stack.has_legacy_keras)
    if stack.backend != "tensorflow":
        text = f"Keras's backend is {stack.backend}; it must be tensorflow"
        fix = "export KERAS_BACKEND=tensorflow (it has priority over ~/.keras/keras.json)"
        yield Problem(text, fix, is_fatal=True)


def require(*, to_train_keras: bool) -> None:
    """Ends an import that cannot work, or would train wrongly, with the cause and the fix.

    Args:
        to_train_keras: Whether Keras is to train; otherwise it only has to be importable.

    Raises:
        ImportError: If something does not fit.
    """
    name = "hvd_dbs.keras" if to_train_keras else "hvd_dbs.tensorflow"
    found = look()
    checks = (
        problems_of_version(found),
        problems_of_settings(found),
        _problems_of_tensorflow(),
        _problems_of_import(found),
    )
    # Lazily: what comes first is often the cause why TensorFlow or Keras cannot be imported.
    for problem in itertools.chain.from_iterable(checks):
        if to_train_keras or problem.is_fatal:
            raise ImportError(f"{name} cannot be imported: {problem.text}. Fix: {problem.fix}")


def numbers_of(version: str) -> tuple[int, ...]:
    """The first three numbers of a version, to compare it with others."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def is_tested(package: str, version: str) -> bool:
    """Whether tests ran on this version of a package of `TESTED`, patches aside."""
    return numbers_of(version)[:2] in [numbers_of(tested) for tested in TESTED[package]]


def _problems_of_tensorflow() -> Iterator[Problem]:
    if not _is_installed("tensorflow"):
        yield Problem("TensorFlow is not installed", INSTALL_TENSORFLOW, is_fatal=True)
        return
    version = str(importlib.import_module("tensorflow").__version__)
    if numbers_of(version) < numbers_of(OLDEST_TENSORFLOW):
        text = f"TensorFlow {version} is older than {OLDEST_TENSORFLOW}"
        fix = f"{INSTALL_TENSORFLOW}; then compile Horovod again"
        yield Problem(text, fix, is_fatal=True)


def _problems_of_import(found: KerasStack) -> Iterator[Problem]:
    if found.uses_legacy_keras:  # TensorFlow and Horovod import tf_keras instead.
        return
    try:
        importlib.import_module("keras")
    except Exception as error:  # Whatever a broken installation can do.
        cause = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        text = f"Keras is installed, but its import fails ({cause})"
        fix = f"pip install --force-reinstall {KERAS_REQUIREMENT}"
        yield Problem(text, fix, is_fatal=True)


def _keras_version() -> str:
    loaded = getattr(sys.modules.get("keras"), "__version__", None)
    if loaded is not None:
        return str(loaded)
    for distribution in ("keras", "keras-nightly"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown" if _is_installed("keras") else ""


def _backend(environment: Mapping[str, str]) -> str:
    loaded: Any = getattr(sys.modules.get("keras"), "backend", None)
    if hasattr(loaded, "backend"):
        return str(loaded.backend())
    return environment.get("KERAS_BACKEND") or _configured_backend(environment) or "tensorflow"


def _configured_backend(environment: Mapping[str, str]) -> str:
    folder = environment.get("KERAS_HOME") or Path("~/.keras").expanduser()
    try:
        return str(json.loads((Path(folder) / "keras.json").read_text()).get("backend", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # A parent that cannot be imported, or no name at all.
        return False
