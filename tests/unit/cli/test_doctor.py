"""`hvd-dbs doctor`: what it concludes from given facts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_dbs.cli.doctor.facts import Package
from hvd_dbs.cli.doctor.finding import Finding
from hvd_dbs.cli.doctor.findings import NEEDED, of_rank
from hvd_dbs.cli.doctor.job_findings import of_job
from hvd_dbs.cli.doctor.launch import Launch
from hvd_dbs.cli.doctor.report import Report
from hvd_dbs.keras_stack import TESTED, KerasStack
from tests.unit.cli.facts import AS_ROOT, FINE, GPUS, LEGACY, having, not_fine, under

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("kind", ["", "Open MPI", "mpi", "gloo"])
@pytest.mark.parametrize("facts", [FINE, GPUS])
def test_where_all_is_well_nothing_is_said_against_it(facts, kind):
    assert not_fine(of_rank(under(facts, kind))) == []
    assert not_fine(of_job([facts])) == []


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        (having(FINE, TensorFlow=Package("")), "problem", "TensorFlow is not installed"),
        (
            having(FINE, Horovod=Package("0.28.1", "ImportError: undefined symbol")),
            "problem",
            "Horovod 0.28.1 cannot be imported: ImportError: undefined symbol",
        ),
        (having(FINE, Keras=Package("2.15.0")), "problem", "Keras 2.15.0 is older than"),
        (having(FINE, NumPy=Package("1.9.5")), "problem", "NumPy 1.9.5 is older than 1.26"),
        (having(FINE, mpi4py=Package("")), "problem", "mpi4py is not installed"),
        (having(FINE, NumPy=Package("2.2.6")), "warning", "no test ran on NumPy 2.2.6"),
        (having(FINE, TensorFlow=Package("2.22.0")), "warning", "no test ran on TensorFlow 2.22.0"),
        (replace(FINE, keras_stack=KerasStack(backend="jax")), "problem", "Keras's backend is jax"),
        (replace(FINE, keras_stack=LEGACY), "warning", "TF_USE_LEGACY_KERAS"),
        (
            replace(FINE, keras_stack=replace(LEGACY, has_legacy_keras=False)),
            "problem",
            "TF_USE_LEGACY_KERAS",
        ),
        (replace(FINE, horovod_parts=("Gloo",)), "warning", "built without MPI"),
        (under(replace(FINE, horovod_parts=("Gloo",)), "mpi"), "problem", "built without MPI"),
        (replace(FINE, mpi_files=("/a/libmpi.so", "/b/libmpi.so")), "problem", "two MPI libraries"),
        (replace(FINE, mpirun="mpirun (Open MPI) 4.1.4"), "warning", "4.1.4, but mpi4py uses"),
        (
            replace(FINE, mpirun="mpirun (Open MPI) 5.0.3", mpi="Open MPI v5.0.3"),
            "warning",
            "horovodrun does not work with mpirun (Open MPI) 5.0.3",
        ),
        (replace(FINE, native_error="built from hvd_dbs 0.0.9"), "warning", "hvd_dbs 0.0.9"),
        (
            replace(FINE, native_error="not there", variables={"HVD_DBS_NATIVE": "1"}),
            "problem",
            "not there",
        ),
        (
            replace(FINE, native_error="?", variables={"HVD_DBS_NATIVE": "yes"}),
            "problem",
            "?",
        ),
        (replace(GPUS, horovod_parts=("MPI",)), "warning", "without NCCL"),
        (replace(GPUS, native_has_cuda=False), "warning", "built without CUDA"),
        (replace(FINE, num_gpu_devices=8), "warning", "none of the 8 NVIDIA GPUs"),
        (replace(FINE, mpirun="", has_horovodrun=False), "warning", "neither mpirun nor"),
        (replace(FINE, is_root=True), "warning", "starts nothing for root"),
    ],
)
def test_each_thing_that_is_wrong_is_found_with_a_way_out(facts, level, text):
    findings = of_rank(facts)
    assert [one[0] for one in not_fine(findings)] == [level]
    (finding,) = (one for one in findings if one.level != "ok")
    assert text in finding.text
    assert finding.fix


@pytest.mark.parametrize(
    "facts",
    [
        replace(FINE, num_gpu_devices=8, variables={"CUDA_VISIBLE_DEVICES": ""}),
        replace(FINE, native_error="left out", variables={"HVD_DBS_NATIVE": "0"}),
        having(under(FINE, "gloo"), mpi4py=Package("")),
        having(replace(under(FINE, "gloo"), horovod_parts=("Gloo",)), mpi4py=Package("")),
        replace(under(FINE, "mpi"), is_root=True),
        replace(FINE, is_root=True, variables=AS_ROOT),
    ],
)
def test_what_is_wanted_or_not_needed_is_fine(facts):
    assert not_fine(of_rank(facts)) == []


ERROR = "ImportError: Keras cannot be imported"


def test_horovod_is_not_blamed_for_psutil():
    facts = having(FINE, psutil=Package(""), Horovod=Package("0.28.1", "no module psutil"))
    assert not_fine(of_rank(facts)) == [("problem", "psutil is not installed")]


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (having(FINE, TensorFlow=Package("")), "TensorFlow is not installed"),
        (having(FINE, NumPy=Package("")), "NumPy is not installed"),
        (replace(FINE, keras_stack=KerasStack(backend="jax")), "Keras's backend is jax"),
        (
            having(
                replace(FINE, keras_stack=KerasStack(backend="x")), TensorFlow=Package("", "no x")
            ),
            "Keras's backend is x",
        ),
        (replace(FINE, keras_stack=LEGACY), "TF_USE_LEGACY_KERAS is set"),
    ],
)
def test_only_the_cause_is_blamed(facts, cause):
    facts = having(facts, Keras=Package("", ERROR), Horovod=Package("0.28.1", ERROR))
    ((level, text),) = not_fine(of_rank(replace(facts, horovod_parts=())))
    assert level == "problem"
    assert cause in text


def test_processes_that_srun_has_started_apart_are_told_how_to_get_together():
    facts = replace(FINE, launch=Launch(rank=1, num_apart=4), is_root=True)
    ((level, text),) = not_fine(of_rank(facts))
    assert level == "problem"
    assert "srun has started 4 processes that know nothing of each other" in text
    (finding,) = (one for one in of_rank(facts) if one.level == "problem")
    assert "srun --mpi=pmix" in finding.fix and "salloc" in finding.fix


@pytest.mark.parametrize(
    ("levels", "exit_code", "verdict"),
    [
        (["ok"], 0, "hvd_dbs can train here"),
        (["ok", "warning", "warning"], 0, "hvd_dbs can train here: 2 warnings"),
        (["problem", "warning"], 1, "hvd_dbs cannot train here: 1 problem, 1 warning"),
    ],
)
def test_only_problems_make_an_exit_code(capsys, levels, exit_code, verdict):
    report = Report("")
    for level in levels:
        report.say([Finding(level, "text", "" if level == "ok" else "way")])
    assert report.conclude() == exit_code
    assert capsys.readouterr().out.splitlines()[-1] == verdict


@pytest.mark.parametrize(("level", "fix"), [("ok", "way"), ("problem", "")])
def test_whatever_is_wrong_has_a_fix(level, fix):
    with pytest.raises(ValueError, match="how to fix"):
        Finding(level, "text", fix)


def test_the_oldest_versions_are_those_that_are_asked_for():
    text = (ROOT / "pyproject.toml").read_text()
    for name, (least, _) in NEEDED.items():
        pattern = rf'"(?:requires-)?{name.lower()}(?:-cpu)?>={re.escape(least)}[";]'
        if name == "Python":
            pattern = rf'requires-python = ">={re.escape(least)}"'
        assert re.search(pattern, text), name


def test_tested_versions_are_those_of_the_page():
    """One source: what the doctor calls supported is what docs/versions.md says was run."""
    page = (ROOT / "docs/versions.md").read_text()
    table = page[page.index("## What was run") : page.index("**The one failure.**")]
    cells = [
        line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| 2.")
    ]
    run = [row for row in cells if "pins resolved only" not in row[3]]
    for name, column in (("TensorFlow", 0), ("NumPy", 2)):
        minors = {".".join(row[column].split(".")[:2]) for row in run}
        assert minors == set(TESTED[name])
    script = (ROOT / "scripts/test_versions.sh").read_text()
    assert f"versions=({' '.join(TESTED['TensorFlow'])})" in script
    pins = (ROOT / "pyproject.toml").read_text()
    assert f'"numpy>={TESTED["NumPy"][0]}"' in pins
    assert f"tensorflow-cpu>={TESTED['TensorFlow'][0]};" in pins
