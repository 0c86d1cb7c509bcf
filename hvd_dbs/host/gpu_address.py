"""Which GPU of its host this process uses."""

from __future__ import annotations

import ctypes

_MOST_CHARACTERS = 32
"""Of an address and its end; CUDA asks for 13 at least."""


def gpu_address(number: int) -> str:
    """The PCI address of a GPU, the same in all processes of a host, such as "0000:65:00.0".

    Numbers differ between processes (CUDA_VISIBLE_DEVICES, containers of a scheduler). Slices of
    one GPU (MIG) have its address. Asks the driver, and takes no memory of the GPU.

    Args:
        number: Of the GPU in this process, as in TensorFlow's "/physical_device:GPU:0".

    Returns:
        The address; empty if it cannot be known.
    """
    driver = _driver()
    if driver is None:
        return ""
    device = ctypes.c_int()
    text = ctypes.create_string_buffer(_MOST_CHARACTERS)
    if (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), number)
        or driver.cuDeviceGetPCIBusId(text, _MOST_CHARACTERS, device)
    ):
        return ""
    return text.value.decode(errors="replace").lower()


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
