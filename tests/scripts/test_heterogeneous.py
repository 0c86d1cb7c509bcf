"""heterogeneous.sh: the plan, the command line, and what a watcher of ranks does."""

import math
import os
import random
import re
import subprocess
from pathlib import Path

import pytest
from heterogeneous.cgroup_hierarchies import find_hierarchies
from heterogeneous.cgroup_quota import quota_settings, remove_stale_groups
from heterogeneous.planning import place
from heterogeneous.processes import JobProcess
from heterogeneous.request import find_num_ranks, parse_request
from heterogeneous.signal_duty import CpuBudget
from heterogeneous.supervision import Ranks, job_environment
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "heterogeneous.sh"
TIMEOUT_SECONDS = 60

speeds_by_rank = st.lists(st.floats(0.01, 10), min_size=1, max_size=12)


# --- planning ------------------------------------------------------------------------------------


@given(speeds_by_rank, st.integers(1, 8))
def test_shares_fit_on_every_core_and_keep_their_ratios(speeds: list[float], cores: int) -> None:
    placement = place(speeds, cores)
    loads = [0.0] * cores
    for core, speed in zip(placement.cores, speeds, strict=True):
        loads[core] += placement.cpu_share(speed)
    assert max(loads) <= 1 + 1e-9
    # Scaled down no further than needed, and never up.
    assert placement.factor == 1 or math.isclose(max(loads), 1)
    assert 0 < placement.factor <= 1


@given(speeds_by_rank)
def test_ranks_are_alone_on_their_cores_where_there_are_enough(speeds: list[float]) -> None:
    assert place(speeds, len(speeds)).cores == tuple(range(len(speeds)))


@pytest.mark.parametrize(
    ("speeds", "num_cores", "cores", "factor"),
    [
        ((1, 1, 0.5, 0.25), 4, (0, 1, 2, 3), 1),
        ((1, 1, 0.5, 0.25), 2, (0, 1, 0, 1), 2 / 3),
        ((1, 1, 0.5, 0.25), 1, (0, 0, 0, 0), 1 / 2.75),
        ((0.25, 0.5, 1, 1), 2, (1, 0, 0, 1), 2 / 3),
        ((0.5, 0.5, 0.5, 0.5), 2, (0, 1, 0, 1), 1),
        ((2, 1), 2, (0, 1), 0.5),  # no rank gets more than one core
        ((0.5,), 64, (0,), 1),
    ],
)
def test_placement(
    speeds: tuple[float, ...], num_cores: int, cores: tuple[int, ...], factor: float
) -> None:
    placement = place(speeds, num_cores)
    assert placement.cores == cores
    assert placement.factor == pytest.approx(factor)


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers that can be found but do nothing."""
    for name in ("mpirun", "horovodrun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("launchers")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--speeds 1,1,0.5 -- mpirun -np 4 python train.py", "3 values .* 4 ranks"),
        ("--speeds 1,1 -- horovodrun --num-proc=3 python train.py", "2 values .* 3 ranks"),
        ("--speeds 1,0 -- mpirun -np 2 python", "speed '0' is not a positive number"),
        ("--speeds -1,1 -- mpirun -np 2 python", "speed '-1' is not"),
        ("--speeds 1,nan -- mpirun -np 2 python", "speed 'nan' is not"),
        ("--speeds 1,inf -- mpirun -np 2 python", "speed 'inf' is not"),
        ("--speeds 1,fast -- mpirun -np 2 python", "speed 'fast' is not"),
        ("--speeds 1,,1 -- mpirun -np 3 python", "speed '' is not"),
        ("-- mpirun -np 2 python", "--speeds is missing"),
        ("--speeds 1,1", "command is missing"),
        ("--speeds 1,1 --", "command is missing"),
        ("--speeds 1,1 mpirun -np 2 python", "unrecognized arguments"),
        ("--speeds 1,1 -- no-such-launcher -np 2", "'no-such-launcher' is not found"),
        ("--speeds 1,1 -- mpirun -np two python", "'two' is not a number of ranks"),
        ("--speeds 1,1 -- mpirun -np", "'' is not a number of ranks"),
        ("--speeds 1,1 --disturb 2:5:1 -- mpirun -np 2 python", "rank '2' is not one of 0 to 1"),
        ("--speeds 1,1 --disturb -1:5:1 -- mpirun -np 2 python", "rank '-1' is not"),
        ("--speeds 1,1 --disturb 1:5 -- mpirun -np 2 python", "'1:5' is not RANK:FROM:SPEED"),
        ("--speeds 1,1 --disturb 1:soon:1 -- mpirun -np 2 python", "'soon' is neither a step"),
        ("--speeds 1,1 --disturb 1:5:0 -- mpirun -np 2 python", "speed '0' is not"),
        ("--speeds 1,1 --from -3 -- mpirun -np 2 python", "--from: '-3' is neither"),
        ("--speeds 1,1 --mechanism magic -- mpirun -np 2 python", "invalid choice: 'magic'"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_request(arguments.split())
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("heterogeneous.sh: error: ")
    assert re.search(message, error), error


@pytest.mark.usefixtures("launchers")
@pytest.mark.parametrize(
    ("command", "num_ranks"),
    [
        ("mpirun -np 4 python train.py", 4),
        ("mpirun -n 3 --bind-to none python train.py -n 7", 3),
        ("mpirun --oversubscribe --np 2 python train.py", 2),
        ("/usr/bin/horovodrun --gloo -np=4 python train.py", 4),
        ("env A=1 horovodrun --num-proc 2 python train.py", 2),
        ("mpirun sh train.sh -n 7", None),  # an option of the program
        ("mpirun -np 1 sh a.sh : -np 1 sh b.sh", None),
        ("sh train.sh -np 4", None),
    ],
)
def test_number_of_ranks_of_a_command(command: str, num_ranks: int | None) -> None:
    assert find_num_ranks(command.split()) == num_ranks


def test_the_script_starts_nothing_on_bad_arguments(tmp_path: Path) -> None:
    trace = tmp_path / "started"
    done = subprocess.run(
        [SCRIPT, "--speeds", "1,0", "--", "touch", trace],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (done.returncode, trace.exists()) == (2, False)
    assert "speed '0' is not a positive number" in done.stderr


def test_environment_keeps_what_the_user_set_and_hides_an_outer_rank() -> None:
    given_variables = {"OMP_NUM_THREADS": "3", "OMPI_COMM_WORLD_RANK": "1"}
    environment = job_environment(given_variables, "token", Path("step"))
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["TF_NUM_INTRAOP_THREADS"] == "1"
    assert "OMPI_COMM_WORLD_RANK" not in environment


# --- mechanisms, without a job -------------------------------------------------------------------


@given(share=st.floats(0.02, 0.98), seed=st.integers(0, 1000))
def test_budget_gives_a_busy_rank_its_share_however_late_the_watcher_is(
    share: float, seed: int
) -> None:
    lateness = random.Random(seed)
    budget, total, consumed = CpuBudget(share), 0.0, 0.0
    while total < 5:
        elapsed = max(budget.seconds_to_change(), 0.0005) + lateness.uniform(0, 0.0002)
        used = 0.0 if budget.is_stopped else elapsed
        budget.advance(elapsed, used)
        total, consumed = total + elapsed, consumed + used
    # A rank that is continued late loses what its full budget cannot hold: under 3 % here.
    assert 0.95 * share <= consumed / total <= 1.01 * share


def test_budget_does_not_save_up_while_a_rank_waits() -> None:
    budget = CpuBudget(0.5)
    assert not budget.advance(elapsed=60, consumed=0)
    assert budget.balance == pytest.approx(CpuBudget(0.5).balance)


@pytest.mark.parametrize(
    ("version", "share", "settings"),
    [
        (1, 0.25, ["cpu.cfs_quota_us -1", "cpu.cfs_period_us 4000", "cpu.cfs_quota_us 1000"]),
        (1, 1.0, ["cpu.cfs_quota_us -1", "cpu.cfs_period_us 2000"]),
        (1, 0.05, ["cpu.cfs_quota_us -1", "cpu.cfs_period_us 20000", "cpu.cfs_quota_us 1000"]),
        (2, 0.25, ["cpu.max 1000 4000"]),
        (2, 1.0, ["cpu.max max 2000"]),
        (2, 0.0001, ["cpu.max 1000 1000000"]),  # the least that the kernel takes
    ],
)
def test_quota_settings(version: int, share: float, settings: list[str]) -> None:
    assert [" ".join(setting) for setting in quota_settings(version, share)] == settings


@pytest.mark.parametrize(
    ("mountinfo", "membership", "expected"),
    [
        (  # v1 in a container that sees its own group as the top
            "34 30 0:29 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
            "35 30 0:30 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
            "4:cpu,cpuacct:/docker/ab\n3:memory:/docker/ab",
            [(1, "/sys/fs/cgroup/cpu,cpuacct")],
        ),
        (  # v2 in a login session
            "31 23 0:27 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw",
            "0::/user.slice/user-1000.slice/session-2.scope",
            [(2, "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope")],
        ),
        (  # both: v1 has the controller
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
            "9:name=systemd:/\n1:cpu:/job\n0::/",
            [(1, "/sys/fs/cgroup/cpu/job"), (2, "/sys/fs/cgroup/unified")],
        ),
        ("31 23 0:27 / / rw - overlay overlay rw", "0::/", []),
    ],
)
def test_find_hierarchies(mountinfo: str, membership: str, expected: list[tuple[int, str]]) -> None:
    found = find_hierarchies(mountinfo, membership)
    assert [(hierarchy.version, str(hierarchy.own)) for hierarchy in found] == expected


def test_groups_of_dead_runs_are_removed_and_others_kept(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = [f"hvd_dbs-{dead.pid}", f"hvd_dbs-{os.getpid()}", "hvd_dbs-x"]
    for name in names:
        (tmp_path / name / "rank-0").mkdir(parents=True)
    remove_stale_groups(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


class RecordingThrottle:
    """A throttle that only writes down the shares it is told."""

    description = "nothing"

    def __init__(self) -> None:
        self.shares: dict[int, float] = {}

    def set_share(self, rank: int, share: float) -> None:
        self.shares[rank] = share

    def add(self, rank: int, pid: int) -> None: ...

    def tick(self) -> float:
        return 0

    def release(self) -> None: ...

    def members(self) -> set[int]:
        return set()

    def close(self) -> None: ...


@pytest.mark.usefixtures("launchers")
def test_disturbances_come_at_their_step_or_second() -> None:
    changes = "--disturb 0:4s:0.25 --disturb 1:30:0.1 --disturb 1:20:0.2"
    request = parse_request(f"--speeds 1,0.5 --from 1 {changes} -- mpirun -np 2 python".split())
    throttle = RecordingThrottle()
    ranks = Ranks(request, place(request.peak_speeds, 2), cores=(0, 1))
    ranks.limit(throttle)
    no_such_pid = 2**22 + 1
    ranks.take([JobProcess(no_such_pid, rank, 2) for rank in (0, 1)], throttle, now=100)
    for steps, now, expected in [
        (0, 103, {0: 1, 1: 1}),
        (1, 103, {0: 1, 1: 0.5}),
        (19, 104, {0: 0.25, 1: 0.5}),
        (20, 104, {0: 0.25, 1: 0.2}),
        (35, 105, {0: 0.25, 1: 0.1}),
    ]:
        ranks.change(throttle, steps, now)
        assert throttle.shares == expected, (steps, now)
