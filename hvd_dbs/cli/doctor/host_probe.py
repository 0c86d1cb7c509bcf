"""What `hvd-dbs doctor --hosts` looks at on a host.

It is sent to the host and runs there by itself, with nothing but Python's standard library.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import platform
import socket
import struct
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MARK = "hvd_dbs probe: "
"""What a line with an answer begins with: shells may print other lines before it."""

_PACKAGES = {
    "hvd_dbs": ("hvd_dbs",),
    "TensorFlow": ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly"),
    "Keras": ("keras",),
    "Horovod": ("horovod",),
    "mpi4py": ("mpi4py",),
}
_GET_ADDRESS, _GET_MASK = 0x8915, 0x891B  # SIOCGIFADDR, SIOCGIFNETMASK


def probe(names: Sequence[str]) -> dict[str, Any]:
    """Looks at this host.

    Args:
        names: Of hosts that it should find by name.

    Returns:
        JSON data: "versions" by name (empty: not installed); "addresses" by name of a host;
        "interfaces": IPv4 address and mask by name of the interface.
    """
    with ThreadPoolExecutor(16) as threads:
        addresses = dict(zip(names, threads.map(addresses_of, names)))  # noqa: B905
    return {
        "host": socket.gethostname(),
        "versions": {
            "Python": platform.python_version(),
            **{name: _version(packages) for name, packages in _PACKAGES.items()},
        },
        "addresses": addresses,
        "interfaces": interfaces(),
    }


def addresses_of(name: str) -> list[str]:
    """The addresses of a host; none if its name is unknown here."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(address[0]) for *_, address in found})


def interfaces() -> dict[str, list[str]]:
    """IPv4 address and mask of each network interface that has one, but for the loopback."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answers = [
                    fcntl.ioctl(any_socket.fileno(), what, request)
                    for what in (_GET_ADDRESS, _GET_MASK)
                ]
            except OSError:
                continue
            address, mask = (socket.inet_ntoa(answer[20:24]) for answer in answers)
            if not address.startswith("127."):
                found[name] = [address, mask]
    return found


def _version(packages: Sequence[str]) -> str:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


if __name__ == "__main__":
    print(MARK + json.dumps(probe(sys.argv[1:])))
