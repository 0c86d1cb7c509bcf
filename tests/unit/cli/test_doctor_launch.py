"""`hvd-dbs doctor`: how its process was started, and that it survives what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_dbs.cli.doctor.launch import Launch

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Launch("", 0, 1)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, Launch("gloo", 1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, Launch("Open MPI", 3, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, Launch("mpi", 0, 2)),
        ({"PMIX_RANK": "1", "SLURM_NTASKS": "8"}, Launch("mpi", 1, 8)),
        ({"SLURM_NTASKS": "8"}, Launch("", 0, 1)),
        # A batch script, in which nothing has been started yet.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, Launch("", 0, 1)),
        (
            {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"},
            Launch("", 0, 1, num_apart=8),
        ),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "3"}, Launch("", 3, 1, num_apart=8)),
        (
            {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
            Launch("", 0, 1),
        ),
        (
            {"PMI_RANK": "0", "PMI_SIZE": "2", "SLURM_PROCID": "0"},
            Launch("mpi", 0, 2, may_abort=True),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "4",
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
            },
            Launch("Open MPI", 0, 4),
        ),
    ],
)
def test_how_a_process_was_started(variables, expected):
    assert Launch.of(variables) == expected


def broken_doctor(code):
    """What a process says whose doctor finds a problem."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=dict(os.environ),  # Python's copy, without what an MPI in this process has set since.
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 1, result.stderr
    return result


def test_with_numpy_and_click_alone_it_says_what_is_missing():
    code = """
import sys
for name in ("tensorflow", "keras", "horovod", "mpi4py", "psutil", "rich"):
    sys.modules[name] = None
from hvd_dbs.cli.main import main
main(["doctor"])
"""
    result = broken_doctor(code)
    missing = re.findall(r"^problem  (\w+) is not installed$", result.stdout, re.MULTILINE)
    assert missing == ["psutil", "TensorFlow", "Keras", "Horovod", "mpi4py"]
    assert "hvd_dbs cannot train here: 5 problems" in result.stdout
    assert result.stderr == ""


def test_tasks_apart_end_before_an_mpi_can_end_them(tmp_path):
    code = """
import os
os.environ.update(SLURM_PROCID="1", SLURM_NTASKS="2", SLURM_STEP_NUM_TASKS="2")
from hvd_dbs.cli.main import main
main(["doctor"])
"""
    output = broken_doctor(code).stdout
    assert "task 1: problem  srun has started 2 processes" in output
    assert "task 1: hvd_dbs cannot train here: 1 problem" in output
    assert "Horovod sums right" not in output


def test_what_cannot_be_imported_is_no_crash(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise OSError('libcudart.so.12: cannot open')")
    code = "from hvd_dbs.cli.main import main; main(['doctor'])"
    result = broken_doctor(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}")
    problems = [line for line in result.stdout.splitlines() if line.startswith("problem")]
    assert len(problems) == 1
    assert "cannot be imported: OSError: libcudart.so.12: cannot open" in problems[0]
