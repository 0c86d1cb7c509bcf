"""Which ranks' collective operations can be joined, and how a rank knows where its own run."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf

from hvd_dbs.host import gpu_address as address_module
from hvd_dbs.host.gpu_address import gpu_address
from hvd_dbs.job import collective_devices
from hvd_dbs.job.collective_devices import CollectiveDevice, own_device, require_joinable


def nccl(host, address):
    return CollectiveDevice(host, on_gpu=True, has_gpu=True, exclusive_gpu=address)


@pytest.mark.parametrize(
    "ranks",
    [
        [CollectiveDevice("a"), CollectiveDevice("b")],
        # Models on GPUs, or on some, and a Horovod that sums on CPUs.
        [CollectiveDevice("a", has_gpu=True), CollectiveDevice("a", has_gpu=True)],
        [CollectiveDevice("a", has_gpu=True), CollectiveDevice("b")],
        [nccl("a", "0000:01:00.0"), nccl("a", "0000:02:00.0"), nccl("b", "0000:01:00.0")],
        # Two machines of one name.
        [replace(nccl("a", "0000:01:00.0"), boot=boot) for boot in ("first", "second")],
        # Nobody knows which GPU it is, or ranks may share one.
        [nccl("a", ""), nccl("a", "")],
    ],
)
def test_ranks_that_can_join(ranks):
    require_joinable(ranks)


def test_gpus_and_cpus_are_refused_with_who_is_where():
    ranks = [nccl("a", "1"), nccl("a", "2"), CollectiveDevice("b")]
    with pytest.raises(
        RuntimeError, match=r"GPUs on a \(ranks 0, 1\), and on CPUs on b \(rank 2\)"
    ):
        require_joinable(ranks)
    with pytest.raises(RuntimeError, match=r"\(no GPU\).*Hide all GPUs.*docs/gpus\.md"):
        require_joinable(ranks)
    ranks[2] = CollectiveDevice("b", has_gpu=True)
    with pytest.raises(RuntimeError, match="or a Horovod without GPU operations"):
        require_joinable(ranks)


def test_a_gpu_that_ranks_of_nccl_share_is_refused():
    ranks = [nccl("a", "0000:01:00.0"), nccl("b", "0000:01:00.0"), nccl("b", "0000:01:00.0")]
    with pytest.raises(RuntimeError, match=r"On b, ranks 1, 2 share the GPU 0000:01:00\.0; NCCL"):
        require_joinable(ranks)


def test_a_rank_knows_where_its_operations_run(monkeypatch):
    gpus = [SimpleNamespace(name="/physical_device:GPU:3")]
    built = {"cuda": True, "nccl": True}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: list(gpus))
    monkeypatch.setattr(hvd, "cuda_built", lambda: built["cuda"])
    monkeypatch.setattr(hvd, "nccl_built", lambda: built["nccl"])
    monkeypatch.setattr(collective_devices, "gpu_address", lambda number: f"address {number}")
    monkeypatch.setattr(collective_devices, "_boot", lambda: "this one")
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    assert own_device("a") == replace(nccl("a", "address 3"), boot="this one")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert own_device("a") == nccl("a", "")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "0")
    built["nccl"] = False  # Horovod sums GPUs' tensors by MPI.
    assert own_device("a") == nccl("a", "")
    built["cuda"] = False
    assert own_device("a") == CollectiveDevice("a", has_gpu=True)
    gpus.clear()
    assert own_device("a") == CollectiveDevice("a")


class Driver:
    """As much of CUDA's driver as is asked; `failing` is the call that fails."""

    def __init__(self, failing=""):
        self.failing = failing

    def _status(self, name):
        return 100 if name == self.failing else 0

    def cuInit(self, flags):  # noqa: N802
        return self._status("cuInit")

    def cuDeviceGet(self, device, number):  # noqa: N802
        ctypes.cast(device, ctypes.POINTER(ctypes.c_int))[0] = number + 40
        return self._status("cuDeviceGet")

    def cuDeviceGetPCIBusId(self, text, length, device):  # noqa: N802
        text.value = f"0000:{device.value:X}A:00.0".encode()[: length - 1]
        return self._status("cuDeviceGetPCIBusId")


def test_the_driver_is_asked_for_a_gpus_address(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(address_module, "_driver", lambda: driver)
    assert gpu_address(2) == "0000:2aa:00.0"
    for failing in ("cuInit", "cuDeviceGet", "cuDeviceGetPCIBusId"):
        driver = Driver(failing)
        assert gpu_address(2) == ""
    driver = None
    assert gpu_address(2) == ""
