"""setup.py: what it does where the native library or kernels for GPUs cannot be built."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import setuptools

from hvd_dbs.ops import native

ROOT = Path(__file__).resolve().parents[2]
BUILD = "from setuptools import build_meta; build_meta.build_wheel('wheel')"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """What a build needs of the repository, and an environment as pip isolates it."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "CMakeLists.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "hvd_dbs").mkdir()
    shutil.copy(ROOT / "hvd_dbs" / "__init__.py", folder / "hvd_dbs")
    (folder / "isolated").mkdir()
    site_packages = Path(setuptools.__file__).parents[1]
    for path in [*site_packages.glob("setuptools*"), site_packages / "_distutils_hack"]:
        (folder / "isolated" / path.name).symlink_to(path)
    return folder


def build(project, mode):
    shutil.rmtree(project / "wheel", ignore_errors=True)
    shutil.rmtree(project / "build", ignore_errors=True)
    environment = {name: text for name, text in os.environ.items() if "HVD_DBS" not in name}
    if mode is not None:
        environment["HVD_DBS_BUILD_OP"] = mode
    return subprocess.run(
        [sys.executable, "-S", "-c", BUILD],
        env=environment | {"PYTHONPATH": str(project / "isolated")},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_an_isolated_build_does_not_leave_out_the_library_in_silence(project):
    built = build(project, None)
    assert built.returncode != 0
    assert "pip install --no-build-isolation" in built.stderr.splitlines()[-1]
    assert "HVD_DBS_BUILD_OP=0" in built.stderr.splitlines()[-1]


@pytest.mark.parametrize(("mode", "reason"), [("0", "HVD_DBS_BUILD_OP=0"), ("auto", "TensorFlow")])
def test_a_package_without_the_library_holds_the_reason(project, mode, reason):
    built = build(project, mode)
    assert built.returncode == 0, built.stderr
    (wheel,) = (project / "wheel").glob("*-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        path = archive.extract("hvd_dbs/ops/_native/absence.txt", project / "extracted")
    text = native.reason_of_build(Path(path))
    assert reason in text
    assert "HVD_DBS_BUILD_OP=1 pip install --no-build-isolation" in text


@pytest.fixture
def setup_module():
    spec = importlib.util.spec_from_file_location("hvd_dbs_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("has_cuda", "mode", "expected"),
    [
        (False, "auto", False),
        (False, "1", True),
        (True, "auto", True),
        (True, "0", False),
        (None, "auto", True),
    ],
)
def test_kernels_for_gpus_are_for_a_tensorflow_with_cuda(
    setup_module, tmp_path, monkeypatch, has_cuda, mode, expected
):
    nvcc = tmp_path / "nvcc"
    nvcc.touch(mode=0o755)
    folder = tmp_path / "tensorflow" / "python" / "platform"
    folder.mkdir(parents=True)
    (tmp_path / "tensorflow" / "__init__.py").touch()
    if has_cuda is not None:
        build_info = f"build_info = OrderedDict([('is_cuda_build', {has_cuda}), ('other', False)])"
        (folder / "build_info.py").write_text(build_info)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NVCC", str(nvcc))
    monkeypatch.setenv("HVD_DBS_CUDA", mode)
    assert (setup_module.cuda_compiler() == str(nvcc)) == expected


def test_another_cuda_compiler_has_a_build_folder_of_its_own(setup_module, monkeypatch):
    # In one folder CMake would forget that there are to be kernels for GPUs.
    folders = []
    monkeypatch.setattr(setup_module, "run_cmake", lambda folder, nvcc: folders.append(folder))
    for nvcc in ("/a/nvcc", "/b/nvcc", "/a/nvcc", None):
        monkeypatch.setattr(setup_module, "cuda_compiler", lambda nvcc=nvcc: nvcc)
        setup_module.CMakeBuild.build_library(None)
    assert folders[0] == folders[2] and len(set(folders)) == 3
