"""`hvd-dbs doctor`: what it concludes from given facts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_dbs.cli.doctor.facts import Facts, Package
from hvd_dbs.cli.doctor.finding import Finding, merge
from hvd_dbs.cli.doctor.findings import NEEDED, of_rank
from hvd_dbs.cli.doctor.job_findings import of_job
from hvd_dbs.cli.doctor.launch import Launch
from hvd_dbs.cli.doctor.report import Report
from hvd_dbs.keras_stack import TESTED, KerasStack

ROOT = Path(__file__).resolve().parents[3]

FINE = Facts(
    packages={name: Package(least) for name, (least, _) in NEEDED.items()}
    | {"hvd_dbs": Package("0.1.0")},
    horovod_parts=("MPI", "Gloo"),
    mpi="Open MPI v4.1.8",
    mpi_files=("/lib/libmpi.so.40",),
    mpirun="mpirun (Open MPI) 4.1.8",
    has_horovodrun=True,
    host="node1",
    cores=frozenset(range(4)),
    launcher_cores=frozenset(range(4)),
)
LEGACY = KerasStack(uses_legacy_keras=True, has_legacy_keras=True)
GPUS = replace(FINE, num_gpus=2, native_has_cuda=True, horovod_parts=("MPI", "Gloo", "NCCL"))

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def having(facts: Facts, **packages: Package) -> Facts:
    return replace(facts, packages={**facts.packages, **packages})


def under(facts: Facts, kind: str) -> Facts:
    return replace(facts, launch=Launch(kind, 0, 2))


def not_fine(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in findings if one.level != "ok"]


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


@pytest.mark.parametrize(
    ("ranks", "changes", "expected"),
    [
        (1, {"quota": 1.5}, ["node1: TensorFlow starts 4 threads on 1.5 cores"]),
        (1, {"quota": 1.5, "variables": {"TF_NUM_INTRAOP_THREADS": "1"}}, []),
        (1, {"quota": 0.5, "variables": {"TF_NUM_INTRAOP_THREADS": "1"}}, []),
        (2, {}, ["node1: TensorFlow starts 8 threads on 4 cores"]),
        (2, {"num_gpus": 2}, []),
        (2, {"variables": {"TF_NUM_INTRAOP_THREADS": "2"}}, []),
        (4, {"quota": 2.0}, ["node1: 4 ranks have 2 cores together"]),
        (2, {"cores": frozenset({0})}, ["bound", "node1: 2 ranks have 1 core together"]),
        (2, {"cores": frozenset({0, 1}), "quota": 1.5}, ["node1: 2 ranks have 1.5 cores together"]),
    ],
)
def test_threads_and_ranks_are_held_against_cores(ranks, changes, expected):
    facts = [replace(FINE, launch=Launch("Open MPI", r, ranks), **changes) for r in range(ranks)]
    texts = [
        text for _, text in not_fine(of_job(facts)) if "CUDA" not in text and "NCCL" not in text
    ]
    assert len(texts) == len(expected)
    assert all(part in text for part, text in zip(expected, texts, strict=True))


def test_ranks_bound_to_cores_of_their_own_leave_the_others_idle():
    bound = [
        replace(FINE, launch=Launch("Open MPI", rank, 2), cores=frozenset({rank}))
        for rank in range(2)
    ]
    assert not_fine(of_job(bound)) == [
        ("warning", "node1: the ranks are bound to cores, and leave 2 cores idle")
    ]
    assert not_fine(of_job([replace(one, launcher_cores=one.cores) for one in bound])) == []
    assert not_fine(of_job([under(one, "mpi") for one in bound])) == []


def test_ranks_in_containers_of_their_own_have_their_quotas_together():
    one = replace(FINE, quota=0.5, variables={"TF_NUM_INTRAOP_THREADS": "1"})
    ranks = [replace(one, launch=Launch("mpi", rank, 4)) for rank in range(4)]
    apart = [replace(rank, container=str(i)) for i, rank in enumerate(ranks)]
    assert "ranks 0, 1, 2, 3 on 2 cores" in " ".join(one.text for one in of_job(apart))
    assert "ranks 0, 1, 2, 3 on 0.5 cores" in " ".join(one.text for one in of_job(ranks))


def test_what_differs_between_ranks_is_said_of_them():
    versions = {"hvd_dbs": Package("0.2.0"), "TensorFlow": Package("2.18.1")}
    other = replace(having(FINE, **versions), host="node2", keras_stack=KerasStack(backend="jax"))
    ranks = [replace(one, launch=Launch("gloo", 0, 3)) for one in (FINE, other, other)]
    threads = {"TF_NUM_INTRAOP_THREADS": "1"}
    assert not_fine(of_job([replace(rank, variables=threads) for rank in ranks])) == [
        ("problem", "node2 (ranks 1, 2): Keras's backend is jax; it must be tensorflow"),
        (
            "warning",
            "TensorFlow is not the same on all ranks: 2.16 on node1 (rank 0); 2.18.1 on node2 "
            "(ranks 1, 2)",
        ),
        (
            "problem",
            "hvd_dbs is not the same on all ranks: 0.1.0 on node1 (rank 0); 0.2.0 on node2 "
            "(ranks 1, 2)",
        ),
    ]


def test_ranks_whose_collective_operations_cannot_be_joined_are_named():
    facts = [replace(GPUS, host="node1"), replace(FINE, host="node2")]
    findings = [one for one in of_job(facts) if "collective operations" in one.text]
    assert [(one.level, one.text) for one in findings] == [
        (
            "warning",
            "only node1 (rank 0) can run collective operations on GPUs, which others cannot join",
        )
    ]
    for alike in ([GPUS, GPUS], [FINE, FINE], [replace(GPUS, horovod_parts=("MPI",)), FINE]):
        assert not any("collective operations" in one.text for one in of_job(alike))


def test_on_one_host_ranks_are_named_alone():
    other = having(FINE, Horovod=Package("0.28.0"))
    texts = [one.text for one in of_job([under(FINE, "gloo"), under(other, "gloo")])]
    assert "Horovod is not the same on all ranks: 0.28.1 on rank 0; 0.28.0 on rank 1" in texts


@pytest.mark.parametrize(
    ("first", "second", "level"),
    [
        ("of hvd_dbs 1, interface 2, without CUDA", "", "warning"),
        ("of hvd_dbs 1, interface 2, with CUDA", "of hvd_dbs 1, interface 3, with CUDA", "warning"),
        ("of hvd_dbs 1, interface 2, with CUDA", "of hvd_dbs 1, interface 2, without CUDA", "ok"),
    ],
)
def test_native_libraries_that_differ_are_named_with_their_hosts(first, second, level):
    ranks = [replace(FINE, native=first), replace(FINE, native=second, host="node2")]
    findings = [
        one for one in of_job([under(one, "gloo") for one in ranks]) if "the same" in one.text
    ]
    text = f"the native library is not the same on all ranks: {first} on node1 (rank 0); "
    assert [one.level for one in findings] == [level]
    assert findings[0].text.startswith(f"{text}{second or 'none'} on node2 (rank 1)")


def test_another_interface_of_the_native_library_is_a_problem():
    ranks = [under(replace(FINE, native_interface=number), "gloo") for number in ("2", "3")]
    assert ("problem", "the native library's interface is not the same on all ranks: 2 on rank 0; "
            "3 on rank 1") in not_fine(of_job(ranks))  # fmt: skip


def test_processes_that_srun_has_started_apart_are_told_how_to_get_together():
    facts = replace(FINE, launch=Launch(rank=1, num_apart=4), is_root=True)
    ((level, text),) = not_fine(of_rank(facts))
    assert level == "problem"
    assert "srun has started 4 processes that know nothing of each other" in text
    (finding,) = (one for one in of_rank(facts) if one.level == "problem")
    assert "srun --mpi=pmix" in finding.fix and "salloc" in finding.fix


def test_the_kind_of_device_of_each_host_can_be_copied():
    ranks = [under(replace(FINE, device=kind), "gloo") for kind in ("NVIDIA T4", "NVIDIA T4")]
    ranks.append(replace(ranks[0], host="node2", device="Some CPU @ 2 GHz"))
    texts = [one.text for one in of_job(ranks)]
    assert "node1: ranks 0, 1 on 4 cores; kind of device: NVIDIA T4" in texts
    assert "node2: rank 2 on 4 cores; kind of device: Some CPU @ 2 GHz" in texts


def test_what_all_ranks_have_is_said_once():
    same, own = Finding("ok", "same"), Finding("warning", "own", "fix it")
    assert merge([[same], [same, own]]) == [same, Finding("warning", "rank 1: own", "fix it")]


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
