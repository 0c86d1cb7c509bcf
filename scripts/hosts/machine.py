"""What emulating hosts needs of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess

_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")


def what_is_missing(needs_tap: bool = False) -> str:
    """Why hosts cannot be emulated here, and the way out, in one sentence; empty if they can.

    Args:
        needs_tap: Whether a link has a delay or a loss.
    """
    if os.geteuid() != 0:
        return "making network namespaces takes root; run it with sudo, or in a virtual machine"
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS])
    packages = {package for tool, package in _PACKAGES.items() if not shutil.which(tool, path=path)}
    if packages:
        return f"a tool is missing; apt-get install {' '.join(sorted(packages))}"
    trial = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if trial.returncode != 0:
        return (
            f"this machine lets nobody make namespaces ({trial.stderr.strip()}); a container needs "
            f"--privileged"
        )
    if needs_tap and not os.path.exists("/dev/net/tun"):
        return "links with delay or loss need /dev/net/tun; modprobe tun"
    return ""
