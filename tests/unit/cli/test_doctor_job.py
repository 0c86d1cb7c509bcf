"""`hvd-dbs doctor`: what it concludes from the facts of all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_dbs.cli.doctor.facts import Package
from hvd_dbs.cli.doctor.finding import Finding, merge
from hvd_dbs.cli.doctor.job_findings import of_job
from hvd_dbs.cli.doctor.launch import Launch
from hvd_dbs.keras_stack import KerasStack
from tests.unit.cli.facts import FINE, GPUS, having, not_fine, under


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


def test_the_kind_of_device_of_each_host_can_be_copied():
    ranks = [under(replace(FINE, device=kind), "gloo") for kind in ("NVIDIA T4", "NVIDIA T4")]
    ranks.append(replace(ranks[0], host="node2", device="Some CPU @ 2 GHz"))
    texts = [one.text for one in of_job(ranks)]
    assert "node1: ranks 0, 1 on 4 cores; kind of device: NVIDIA T4" in texts
    assert "node2: rank 2 on 4 cores; kind of device: Some CPU @ 2 GHz" in texts


def test_what_all_ranks_have_is_said_once():
    same, own = Finding("ok", "same"), Finding("warning", "own", "fix it")
    assert merge([[same], [same, own]]) == [same, Finding("warning", "rank 1: own", "fix it")]
