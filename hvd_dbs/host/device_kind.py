"""What kind of device this process computes on."""

from __future__ import annotations

import platform
from pathlib import Path

_CPU_NAMES = ("model name", "cpu model", "cpu")
"""Entries of /proc/cpuinfo that name the processor: on x86, MIPS, and POWER."""


def device_kind() -> str:
    """The name of the GPU that this process uses first, else of its host's processor.

    The same as TensorFlow's and the driver's name, such as "NVIDIA A100-SXM4-80GB". Of several
    GPUs the first visible one counts, so choose the rank's with `tf.config.set_visible_devices`
    before.

    Returns:
        A name in one line; never empty.
    """
    import tensorflow as tf

    for gpu in tf.config.get_visible_devices("GPU"):
        name = tf.config.experimental.get_device_details(gpu).get("device_name")
        return _in_one_line(str(name or "GPU"))
    return cpu_name()


def uses_gpu() -> bool:
    """Whether this process computes on a GPU."""
    import tensorflow as tf

    return bool(tf.config.get_visible_devices("GPU"))


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name, or its architecture where the system does not name the model.

    Args:
        cpuinfo: Where Linux describes the processors.
    """
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    entries: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        if value.strip():
            entries.setdefault(key.strip().lower(), value)
    names = [entries[key] for key in _CPU_NAMES if key in entries]
    return _in_one_line(
        next(iter(names), "") or platform.processor() or platform.machine() or "CPU"
    )


def _in_one_line(name: str) -> str:
    return " ".join(name.split())
