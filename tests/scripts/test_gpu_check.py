"""`scripts/gpu_check.sh`: without a GPU it refuses, and a dry run does all of it on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from scripts.gpu_check import __main__ as program
from scripts.gpu_check import processes
from scripts.gpu_check.machine import Machine
from scripts.gpu_check.unequal import STRATEGIES
from tests.ahead import FOLDER, Jobs
from tests.jobs import REPOSITORY

SCRIPT = str(REPOSITORY / "scripts" / "gpu_check.sh")
DRY_RUN = [SCRIPT, "--tensorflow", "--dry-run", "--report", f"{FOLDER}/report.json"]
JOBS = Jobs({"dry run": DRY_RUN}, timeout=600)
CURVES = ("ResNet-50, float32", "ResNet-50, bfloat16", "encoder, bfloat16")
PARTS = {part.title: part for part in program.PARTS}


@JOBS.needed("dry run")
def test_a_dry_run_does_all_parts_on_the_cpu():
    output = JOBS["dry run"].output
    assert JOBS["dry run"].exit_code == 0, output[-6000:]
    report = json.loads((JOBS.folder("dry run") / "report.json").read_text())
    assert report["dry_run"] and report["gpus"] == []
    assert report["versions"]["TensorFlow"] and report["versions"]["native library"]
    parts = report["parts"]
    names = {part.name for part in PARTS.values()}
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(names, "passed")
    assert "weights are the same on all ranks, bit for bit" in output
    assert parts["bandwidth"]["ResNet-50, float32"]["pack over copy"] > 0
    assert parts["allreduce"]["weighted_allreduce, 24 MiB buckets"]["over the first"] > 0
    assert len(parts["clock"]["the step, its buckets and the change signal"]) == 3
    for strategy in ("even", "adaptive"):
        found = parts["sharing"][strategy]
        assert found["samples/s"][0] > 0 and min(found["busy, ms"]) > 0
        assert {sum(plan) for plan in [found["local batch sizes"], *found["plans"]]} == {32}
    assert parts["sharing"]["even"]["plans"] == [[16, 16]]
    assert parts["unequal"]["devices"] == ["CPU", "CPU"]
    assert all(parts["unequal"][strategy]["samples/s"][0] > 0 for strategy in STRATEGIES)
    assert parts["overlap"]["adaptive"]["T_u, ms"] > 0
    assert [len(parts["curves"][model]) for model in CURVES] == [3, 3, 3]


@pytest.mark.parametrize("words", [[], ["--tests-only"], ["--tensorflow"]])
def test_without_a_gpu_it_says_so_and_what_can_be_done(tmp_path, words):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvcc").write_text("#!/bin/sh\n")
    for program_file in tmp_path.iterdir():
        program_file.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(
        [SCRIPT, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 3
    assert "there is no NVIDIA GPU here" in ended.stderr
    assert ("--tensorflow --dry-run" if "--tensorflow" in words else "--build-only") in ended.stderr


@pytest.mark.parametrize(
    ("part", "gpus", "has_nccl", "may_share", "reason"),
    [
        ("verify", 1, False, "0", ""),
        ("verify", 1, True, "0", "ranks of NCCL share no GPU"),
        ("verify", 1, True, "1", ""),
        ("clock", 1, True, "0", ""),
        ("unequal", 1, False, "0", "there is no nvidia-cuda-mps-control"),
        ("unequal with a rank without a GPU", 1, False, "0", ""),
        ("unequal with a rank without a GPU", 1, True, "1", "Horovod is built with NCCL"),
        ("verify on two GPUs", 1, True, "0", "there is one GPU"),
        ("verify on two GPUs", 2, False, "0", "Horovod is built without NCCL"),
        ("verify on two GPUs", 2, True, "0", ""),
    ],
)
def test_parts_that_a_machine_cannot_run_are_skipped_with_the_reason(
    monkeypatch, part, gpus, has_nccl, may_share, reason
):
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", may_share)
    monkeypatch.setattr(program.shutil, "which", lambda name: None)
    found = program.why_not(PARTS[part], Machine(["GPU"] * gpus, {}, has_nccl))
    assert found.startswith(reason) and bool(found) == bool(reason)


def runs(process):
    try:
        return psutil.Process(int(process)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def service(folder, monkeypatch, then="exec sleep 60"):
    """A Multi-Process Service that records its GPU, and ends on `quit`."""
    control = folder / processes.MPS
    control.write_text(
        f"#!/bin/sh\ncd {folder}\n"
        f'if [ -n "$1" ]; then echo $$ $CUDA_VISIBLE_DEVICES > daemon; {then}; fi\n'
        "read word && [ $word = quit ] && read process gpu < daemon && kill $process\n"
    )
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_the_multi_process_service_runs_for_one_gpu_and_ends(tmp_path, monkeypatch):
    service(tmp_path, monkeypatch)
    with processes.mps("3") as variables:
        assert variables["CUDA_VISIBLE_DEVICES"] == "0"
        assert Path(variables["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
        process, gpu = (tmp_path / "daemon").read_text().split()
        assert gpu == "3" and runs(process)
    assert not runs(process)


def test_a_service_that_ends_at_once_fails_its_part_with_what_it_said(tmp_path, monkeypatch):
    service(tmp_path, monkeypatch, then="echo no rights; exit 1")
    with pytest.raises(RuntimeError, match="ended at once: no rights"), processes.mps("0"):
        pass


def test_what_takes_too_long_ends_with_all_that_it_has_started(tmp_path):
    script = f"sleep 60 & echo $! > {tmp_path}/child; wait"
    assert processes.run(["bash", "-c", script], 0.5) is None
    end = time.monotonic() + 10
    while runs((tmp_path / "child").read_text()):
        assert time.monotonic() < end


def test_each_part_has_a_job_and_one_that_breaks_fails_its_part_alone(monkeypatch, tmp_path):
    started = []

    def run(words, seconds):
        name = words[-1]
        gpus = [word.partition("=")[2] for word in words if word.startswith("CUDA_VISIBLE")]
        shares = [int(word.partition("=")[2]) for word in words if "PERCENTAGE" in word]
        started.append((name, gpus, shares))
        if name == "clock":
            return 134
        Path(words[words.index("scripts.gpu_check.job") + 1]).write_text(
            json.dumps({"part": name, "status": "passed"}) + "\n"
        )
        return 0

    report = tmp_path / "report.json"
    service(tmp_path, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(program.processes, "run", run)
    monkeypatch.setattr(program, "look", lambda hide_gpus: Machine(["A", "B"], {}, False))
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--report", str(report)])
    assert program.main() == 1
    parts = json.loads(report.read_text())["parts"]
    assert parts.pop("clock")["reason"].startswith("the job ended with 134")
    assert {part["status"] for part in parts.values()} == {"passed", "skipped"}
    assert [name for name, *_ in started] == [
        part.name for part in program.PARTS if not part.gpus_of_their_own
    ]
    assert [gpus for name, gpus, _ in started if name == "clock"] == [["0"]]
    # All on the first GPU, or one of two without.
    assert [gpus for name, gpus, _ in started if name == "verify"] == [["0", "0"], ["0", "-1"]]
    assert [shares for *_, shares in started if shares] == [[70, 30]]
    assert parts["unequal"]["percent of the GPU"] == [70, 30]
    monkeypatch.setattr(program, "look", lambda hide_gpus: Machine([], {}, False))
    assert program.main() == 3


def test_what_is_over_is_in_the_report_if_the_check_is_stopped(monkeypatch, tmp_path):
    def run(words, seconds):
        if words[-1] == "bandwidth":
            raise KeyboardInterrupt
        return 1

    report = tmp_path / "report.json"
    monkeypatch.setattr(program.processes, "run", run)
    monkeypatch.setattr(program, "look", lambda hide_gpus: Machine(["A"], {}, False))
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--report", str(report)])
    with pytest.raises(KeyboardInterrupt):
        program.main()
    assert list(json.loads(report.read_text())["parts"]) == ["operations"]


def test_help_says_what_there_is():
    ended = subprocess.run(
        [SCRIPT, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0 and "--tensorflow" in ended.stdout and "#" not in ended.stdout
