"""hvd_dbs from its sdist and from a wheel, in environments that scripts/setup.sh has not made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.jobs import REPOSITORY, job_environment

SECONDS = 600.0
"""Of a command: the native library may be compiled in it, beside other tests."""

_WITHOUT_COMPILER = str(Path(sys.executable).parent)
"""A PATH with pip's tools alone."""
_BUILD = "from setuptools import build_meta; build_meta.build_sdist('dist')"


class Environment:
    """A virtual environment that has TensorFlow and Horovod, and no hvd_dbs.

    Args:
        folder: Where it is made.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        (self._site_packages,) = folder.glob("lib/python*/site-packages")
        # Without what is particular to the environment of these tests: its own .pth files.
        (self._site_packages / "tensorflow_and_horovod.pth").write_text(
            sysconfig.get_path("purelib") + "\n"
        )
        self._folder = folder
        variables = {k: v for k, v in job_environment().items() if not k.startswith("HVD_DBS")}
        del variables["PYTHONPATH"]
        self._variables = {
            **variables,
            "PATH": f"{folder / 'bin'}{os.pathsep}{variables['PATH']}",
            "OPAL_PREFIX": os.environ.get("OPAL_PREFIX", sys.prefix),
        }

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command elsewhere than in the repository."""
        return subprocess.run(
            words,
            cwd=self._folder,
            env=self._variables | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def pip(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs pip of the tests' environment on this one, without a network."""
        return self.run(
            *(sys.executable, "-m", "pip", "--python", str(self.python)),
            *(*words, "--no-build-isolation", "--no-deps", "--no-index"),
            **variables,
        )

    def verify(self) -> str:
        """What `hvd-dbs verify` of the installed package prints."""
        where = self.run(str(self.python), "-c", "import hvd_dbs; print(hvd_dbs.__file__)")
        assert Path(where.stdout.strip()).parent.parent == self._site_packages, where
        verified = self.run("hvd-dbs", "verify")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        return verified.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Made of what git knows, so that what MANIFEST.in leaves out is missing."""
    tree = tmp_path_factory.mktemp("source") / "tree"
    ignored = shutil.ignore_patterns(".*", "build", "_native", "__pycache__", "*.egg-info", "tests")
    shutil.copytree(REPOSITORY, tree, ignore=ignored)
    subprocess.run([sys.executable, "-c", _BUILD], cwd=tree, timeout=SECONDS, check=True)
    (found,) = (tree / "dist").glob("*.tar.gz")
    return str(found)


def test_an_sdist_is_installed_with_the_native_library(sdist, tmp_path):
    environment = Environment(tmp_path / "there")
    installed = environment.pip("install", sdist)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert "native operations" in environment.verify()


def test_without_a_compiler_an_sdist_says_so_and_a_wheel_in_python_is_installed(sdist, tmp_path):
    environment = Environment(tmp_path / "there")
    refused = environment.pip("install", sdist, PATH=_WITHOUT_COMPILER)
    assert refused.returncode != 0
    assert "no C++ compiler (c++, g++, clang++): sudo apt-get install g++" in refused.stderr
    words = "wheel", "--wheel-dir", "wheels", sdist
    built = environment.pip(*words, HVD_DBS_BUILD_OP="auto", PATH=_WITHOUT_COMPILER)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("there/wheels/hvd_dbs-*-none-any.whl")
    installed = environment.pip("install", str(wheel))
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert "native operations" not in environment.verify()
