"""Kinds of device, as users copy them into bounds."""

from __future__ import annotations

import socket

import pytest
import tensorflow as tf

from hvd_dbs.host import device_kind as module
from hvd_dbs.host.device_kind import cpu_name, device_kind, uses_gpu


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (
            "processor\t: 0\nmodel\t\t: 106\nmodel name\t: Intel(R) Xeon(R)   CPU @ 2.90GHz\n"
            "processor\t: 1\nmodel name\t: another\n",
            "Intel(R) Xeon(R) CPU @ 2.90GHz",
        ),
        ("processor : 0\ncpu : POWER9, altivec supported\n", "POWER9, altivec supported"),
    ],
)
def test_a_processor_has_its_models_name(tmp_path, cpuinfo, name):
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    assert cpu_name(path) == name


def test_a_processor_without_a_name_has_its_architectures(tmp_path, monkeypatch):
    monkeypatch.setattr(module.platform, "processor", lambda: "")
    monkeypatch.setattr(module.platform, "machine", lambda: "aarch64")
    (tmp_path / "cpuinfo").write_text("processor : 0\nBogoMIPS : 50.00\n")
    assert cpu_name(tmp_path / "cpuinfo") == cpu_name(tmp_path / "none") == "aarch64"


def test_a_gpu_counts_before_the_processor(monkeypatch):
    details = {"gpu 1": {"device_name": "NVIDIA A100-SXM4-80GB"}, "gpu 2": {}}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: list(visible))
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.get)
    visible = ["gpu 1", "gpu 2"]
    assert device_kind() == "NVIDIA A100-SXM4-80GB" and uses_gpu()
    visible = ["gpu 2"]
    assert device_kind() == "GPU"
    visible = []
    assert device_kind() == cpu_name() and not uses_gpu()


def test_a_rank_knows_its_place(monkeypatch):
    import horovod.tensorflow as hvd

    from hvd_dbs.comm.collective import AloneCollective
    from hvd_dbs.job import places

    monkeypatch.setattr(hvd, "local_size", lambda: 2)
    monkeypatch.setattr(places.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(places, "num_usable_cores", lambda: 8)
    monkeypatch.setenv("HOROVOD_HOSTNAME", "made-up")
    (place,) = places.places_by_rank(AloneCollective())
    assert place.host_names[0] == socket.gethostname() and "made-up" in place.host_names
    assert place.speed_class == f"{cpu_name()}, 4 cores"
    monkeypatch.setattr(places, "num_usable_cores", lambda: 0.5)  # A container's quota.
    assert places.own_place().speed_class == f"{cpu_name()}, 0.5 cores"
    monkeypatch.setattr(places, "uses_gpu", lambda: True)
    assert places.own_place().speed_class == cpu_name()
