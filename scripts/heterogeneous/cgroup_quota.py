"""Throttling by a CPU quota of the kernel: one control group per rank, cgroup v1 or v2."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from heterogeneous.cgroup_hierarchies import Hierarchy, hierarchies_here
from heterogeneous.processes import is_alive, send

PERIOD_MICROSECONDS = 2_000
"""A rank at its quota stands still until the period ends, during an exchange too. With
10 ms an allreduce among four ranks took up to 27 ms, with 2 to 4 ms it takes about 5."""
SHORTEST_QUOTA_MICROSECONDS = 1_000  # the kernel takes no less
LONGEST_PERIOD_MICROSECONDS = 1_000_000
GROUP_NAME = "hvd_dbs-{pid}"
SECONDS_TO_EMPTY = 2.0
SECONDS_BETWEEN_TICKS = 0.05


def quota_settings(version: int, share: float, whole: float = 1) -> list[tuple[str, str]]:
    """What to write to which file of a group, in this order, for a share of one core; pure.

    From `whole` cores on there is no limit.

    Example:
        >>> quota_settings(2, 0.25)
        [('cpu.max', '1000 4000')]
    """
    # A rank of share 1 has a core of its own; a quota of all of it would only add stumbles.
    limit, period = "max" if version == 2 else "-1", PERIOD_MICROSECONDS
    if share < whole:
        period = max(period, round(SHORTEST_QUOTA_MICROSECONDS / share))
        period = min(period, LONGEST_PERIOD_MICROSECONDS)
        limit = str(max(SHORTEST_QUOTA_MICROSECONDS, round(share * period)))
    if version == 2:
        return [("cpu.max", f"{limit} {period}")]
    # Without a quota between, a new period could make the old quota invalid.
    off = [("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", str(period))]
    return off + ([("cpu.cfs_quota_us", limit)] if share < whole else [])


class CgroupQuota:
    """Throttle by CPU quotas. Makes `hvd_dbs-PID/rank-I` below a folder where it may."""

    def __init__(
        self, num_ranks: int, hierarchies: Sequence[Hierarchy] | None = None, whole: float = 1
    ) -> None:
        """Makes the groups, without limits.

        Args:
            num_ranks: Groups to make.
            hierarchies: Where; those of this process by default.
            whole: Cores that a group may use; as a share it is no limit.

        Raises:
            OSError: If no hierarchy lets us; says why.
        """
        self._undo: list[tuple[Path, str]] = []  # what was written to a file and has to be undone
        self._moved_from: Path | None = None
        self._group = Path()
        self._ranks: list[Path] = []
        self._whole = whole
        if hierarchies is None:
            for hierarchy in hierarchies_here():
                for folder in hierarchy.upwards():
                    remove_stale_groups(folder)
            hierarchies = hierarchies_here()  # ours may have been inside a stale one
        reasons = []
        for hierarchy in hierarchies:
            self._version = hierarchy.version
            self.description = f"CPU quota of cgroup v{hierarchy.version}"
            for base, moves_others in _bases(hierarchy):
                try:
                    self._make(base, num_ranks, moves_others)
                    return
                except OSError as error:
                    reasons.append(f"{error.filename or base}: {error.strerror}")
                    self.close()
        raise OSError(f"no CPU cgroup to write to: {reasons[0] if reasons else 'none is mounted'}")

    def set_share(self, rank: int, share: float) -> None:
        """See `Throttle`."""
        for name, text in quota_settings(self._version, share, self._whole):
            _write(self._ranks[rank] / name, text)

    def add(self, rank: int, pid: int) -> None:
        """See `Throttle`."""
        with contextlib.suppress(ProcessLookupError):
            _write(self._ranks[rank] / "cgroup.procs", str(pid))

    def tick(self) -> float:
        """See `Throttle`. Nothing is due: the kernel does it."""
        return SECONDS_BETWEEN_TICKS

    def release(self) -> None:
        """See `Throttle`."""
        for rank in range(len(self._ranks)):
            with contextlib.suppress(OSError):
                self.set_share(rank, self._whole)

    @property
    def folders(self) -> list[Path]:
        """The folder of each group."""
        return list(self._ranks)

    def members(self) -> set[int]:
        """See `Throttle`."""
        return {pid for folder in self._ranks for pid in _processes_in(folder)}

    def close(self) -> None:
        """See `Throttle`."""
        for folder in self._ranks:
            _remove(folder)
        for path, text in reversed(self._undo):
            with contextlib.suppress(OSError):
                _write(path, text)
        if self._moved_from is not None:
            _move_all(self._group / "others", self._moved_from)
            _remove(self._group / "others")
        _remove(self._group)
        self._undo, self._moved_from, self._ranks = [], None, []

    def _make(self, base: Path, num_ranks: int, moves_others: bool) -> None:
        self._group = base / GROUP_NAME.format(pid=os.getpid())
        self._group.mkdir(exist_ok=True)
        if moves_others:
            (self._group / "others").mkdir(exist_ok=True)
            self._moved_from = base
            _move_all(base, self._group / "others")
        if self._version == 2:
            self._enable_cpu(base)
            self._enable_cpu(self._group)
        for rank in range(num_ranks):
            folder = self._group / f"rank-{rank}"
            folder.mkdir(exist_ok=True)
            self._ranks.append(folder)
            self.set_share(rank, 0.5)  # tries whether a limit is accepted
            self.set_share(rank, self._whole)
        _try_to_enter(self._ranks[0])

    def _enable_cpu(self, folder: Path) -> None:
        """A v2 folder's children have the controller only where the folder says so."""
        control = folder / "cgroup.subtree_control"
        if "cpu" not in control.read_text().split():
            _write(control, "+cpu")
            self._undo.append((control, "-cpu"))


def remove_stale_groups(folder: Path) -> None:
    """Removes what runs that are dead left in `folder`; does nothing where it may not."""
    for group in folder.glob(GROUP_NAME.format(pid="*")):
        match = re.fullmatch(GROUP_NAME.format(pid=r"(\d+)"), group.name)
        if match is None or is_alive(int(match[1])):
            continue
        ranks = list(group.glob("rank-*"))
        if any(_processes_in(rank) for rank in ranks):
            continue
        for rank in ranks:
            _remove(rank)
        others = group / "others"
        if others.is_dir():
            with contextlib.suppress(OSError):
                _write(group / "cgroup.subtree_control", "-cpu")
                _write(folder / "cgroup.subtree_control", "-cpu")
                _move_all(others, folder)
            _remove(others)
        _remove(group)


def _bases(hierarchy: Hierarchy) -> list[tuple[Path, bool]]:
    """Folders to try, best first, and whether the processes in it have to be moved away first."""
    if hierarchy.version == 1:
        return [(hierarchy.own, False)]
    # In v2 a group with processes of its own cannot hand the controller to its children (the root
    # can). Under systemd the slice above ours has none. In a container there is only our own, so
    # last of all its processes are moved into a child for as long as the job runs.
    tried = [(folder, False) for folder in hierarchy.upwards()]
    return [*tried, (hierarchy.own, True)]


def _write(path: Path, text: str) -> None:
    # Not write_text: it would create a file where the kernel has none.
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def _processes_in(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _move_all(source: Path, target: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_EMPTY
    while (pids := [pid for pid in _processes_in(source) if pid > 0]) and (
        time.monotonic() < deadline  # new ones may be forked meanwhile
    ):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                _write(target / "cgroup.procs", str(pid))


def _try_to_enter(folder: Path) -> None:
    """Moves a process of ours into the group; raises OSError where that is not allowed."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        _write(folder / "cgroup.procs", str(pid))
    finally:
        send([pid], signal.SIGKILL)
        os.waitpid(pid, 0)


def _remove(folder: Path) -> None:
    """Removes a group; the processes in it are dying, so it may take a moment."""
    deadline = time.monotonic() + SECONDS_TO_EMPTY
    while folder.is_dir():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
