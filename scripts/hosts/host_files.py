"""What all emulated hosts have in /etc, and their keys."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_host_files(
    folder: Path, addresses: Mapping[str, str], ssh_options: Sequence[str]
) -> None:
    """Writes them.

    Args:
        folder: Where to.
        addresses: Addresses of the hosts by name.
        ssh_options: Lines for the hosts' ssh configuration.
    """
    (folder / "ssh").mkdir()
    for key in ("ssh/id_ed25519", "host_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(words, check=True, timeout=30)
    public = (folder / "ssh/id_ed25519.pub").read_text()
    (folder / "ssh/authorized_keys").write_text(public)
    (folder / "ssh/known_hosts").write_text(f"* {(folder / 'host_key.pub').read_text()}")
    (folder / "ssh/config").write_text("".join(f"{line}\n" for line in ssh_options))
    names = [f"{address} {name}" for name, address in addresses.items()]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
    (folder / "resolv.conf").write_text("")
    (folder / "passwd").write_text(
        "root:x:0:0:root:/run/home:/bin/bash\n"
        "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    (folder / "shadow").write_text("root:*:19000:0:99999:7:::\n")
    (folder / "sshd_config").write_text(
        "HostKey /run/host_key\nPidFile /run/sshd.pid\nUsePAM no\nStrictModes no\nMaxStartups 200\n"
        "PermitRootLogin prohibit-password\nAuthorizedKeysFile /run/home/.ssh/authorized_keys\n"
        "PrintMotd no\nPrintLastLog no\nUseDNS no\n"
    )
