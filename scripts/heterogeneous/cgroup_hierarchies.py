"""Where control groups are mounted, and which of them hold this process."""

import contextlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Hierarchy:
    """A mounted tree of control groups that can have the CPU controller.

    Attributes:
        version: 1 or 2.
        top: The uppermost folder of it that is visible here.
        own: The folder of this process.
    """

    version: int
    top: Path
    own: Path

    def upwards(self) -> list[Path]:
        """The folder of this process, then each that holds the one before, to the uppermost."""
        folders = [self.own]
        while folders[-1] != self.top and folders[-1] != folders[-1].parent:
            folders.append(folders[-1].parent)
        return folders


def find_hierarchies(mountinfo: str, membership: str) -> list[Hierarchy]:
    """Reads the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`; pure.

    The v1 hierarchy comes first: where it exists, it holds the CPU controller.
    """
    paths: dict[str, str] = {}  # of the process, by the type of the file system
    for line in membership.splitlines():
        _, controllers, path_text = line.split(":", 2)
        if "cpu" in controllers.split(",") or not controllers:
            paths["cgroup" if controllers else "cgroup2"] = path_text
    found = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        root, mount_point = fields.split()[3:5]
        kind, _, options = (rest.split() + [""] * 3)[:3]
        if kind not in paths or (kind == "cgroup" and "cpu" not in options.split(",")):
            continue
        top, path = Path(mount_point), Path(paths[kind])
        # In a container the membership may lie outside of what is mounted.
        own = top / path.relative_to(root) if path.is_relative_to(root) else top
        found.append(Hierarchy(1 if kind == "cgroup" else 2, top, own))
    return sorted(found, key=lambda hierarchy: hierarchy.version)


def hierarchies_here() -> list[Hierarchy]:
    """Those of this process."""
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text()
        return find_hierarchies(mountinfo, Path("/proc/self/cgroup").read_text())
    except OSError:
        return []


def cores_allowed_here() -> float:
    """The CPU quota that this process itself lives under, as in a container; inf without one."""
    cores = float("inf")
    for hierarchy in hierarchies_here():
        for folder in hierarchy.upwards():
            with contextlib.suppress(OSError, ValueError):
                if hierarchy.version == 2:
                    quota, period = (folder / "cpu.max").read_text().split()
                else:
                    quota = (folder / "cpu.cfs_quota_us").read_text()
                    period = (folder / "cpu.cfs_period_us").read_text()
                if float(quota) > 0:  # "max" is a ValueError, and no limit
                    cores = min(cores, float(quota) / float(period))
    return cores
