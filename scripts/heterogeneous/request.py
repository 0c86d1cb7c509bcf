"""The command line, checked before anything is started."""

import argparse
import math
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PROGRAM = "heterogeneous.sh"
LAUNCHERS = frozenset({"horovodrun", "mpirun", "mpiexec", "orterun", "prterun"})
NUM_RANKS_OPTION = re.compile(r"--?(?:np|n|c|num-proc)(?:=(.*))?", re.DOTALL)
MECHANISMS = ("auto", "cgroup", "signals")
OPTIONS_WITH_VALUE = ("--speeds", "--disturb", "--from", "--mechanism")

DESCRIPTION = """\
Runs a Horovod or MPI job on this machine with every rank slowed to its relative speed.

Speed 1 is one core. Where the speeds do not fit on the cores, all are scaled down together. A rank
may use at most its share of every few milliseconds of CPU time; waiting costs it nothing.
"""
EPILOG = """\
Steps are read from the file named by HVD_DBS_STEP_FILE, which is set for the job: rank 0 writes its
number of finished steps there, as decimal text. hvd_dbs does so; other scripts may.

Example: four ranks, and rank 1 drops to a third after step 300:
  scripts/heterogeneous.sh --speeds 1,1,0.5,0.25 --disturb 1:300:0.33 -- \\
      horovodrun -np 4 python train.py
"""


@dataclass(frozen=True)
class Moment:
    """A time in the run: so many steps, or seconds since all ranks were found."""

    value: float
    unit: str

    def is_reached(self, steps: int, seconds: float) -> bool:
        """Whether the moment has come after `steps` steps and `seconds` seconds."""
        return (steps if self.unit == "steps" else seconds) >= self.value

    def __str__(self) -> str:
        """As in a sentence: "step 300" or "12.5 s"."""
        return f"step {self.value:g}" if self.unit == "steps" else f"{self.value:g} s"


@dataclass(frozen=True)
class Disturbance:
    """From `moment` on, `rank` runs at `speed`."""

    rank: int
    moment: Moment
    speed: float


@dataclass(frozen=True)
class Request:
    """What the user asked for; every field is valid and they fit together.

    Attributes:
        speeds: Relative speed by rank.
        disturbances: Changes of speed while the job runs, as given.
        start: From when on ranks are throttled at all; None is from their first moment.
        mechanism: One of `MECHANISMS`.
        command: The launcher and its arguments.
    """

    speeds: tuple[float, ...]
    disturbances: tuple[Disturbance, ...]
    start: Moment | None
    mechanism: str
    command: tuple[str, ...]

    @property
    def peak_speeds(self) -> tuple[float, ...]:
        """The highest speed that each rank has at any time."""
        return tuple(
            max([speed, *(d.speed for d in self.disturbances if d.rank == rank)])
            for rank, speed in enumerate(self.speeds)
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage and message."""
        print(f"{PROGRAM}: error: {message}", file=sys.stderr)
        raise SystemExit(2)


def parse_speed(text: str) -> float:
    """A positive, finite number, or ValueError."""
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not (math.isfinite(speed) and speed > 0):
        raise ValueError(f"speed {text!r} is not a positive number; 1 is one core, 0.5 half of it")
    return speed


def parse_moment(text: str) -> Moment:
    """`300` is a step, `12s` or `1.5s` seconds; otherwise ValueError."""
    if re.fullmatch(r"\d+", text):
        return Moment(int(text), "steps")
    if match := re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)s", text):
        return Moment(float(match[1]), "seconds")
    raise ValueError(f"{text!r} is neither a step such as 300 nor a time such as 12s")


def parse_disturbance(text: str, num_ranks: int) -> Disturbance:
    """Parses `RANK:FROM:SPEED`, or raises ValueError."""
    parts = text.split(":")
    if len(parts) != 3:
        raise ValueError(f"{text!r} is not RANK:FROM:SPEED, for example 1:300:0.5 or 1:12s:0.5")
    if not re.fullmatch(r"\d+", parts[0]) or int(parts[0]) >= num_ranks:
        raise ValueError(f"rank {parts[0]!r} is not one of 0 to {num_ranks - 1}, which have speeds")
    return Disturbance(int(parts[0]), parse_moment(parts[1]), parse_speed(parts[2]))


def find_num_ranks(command: Sequence[str]) -> int | None:
    """How many ranks the launcher in `command` is asked for, None where that cannot be told.

    Only options of the launcher count, not those of the program after it.

    Raises:
        ValueError: If the launcher's option is not a positive number.
    """
    launchers = [i for i, word in enumerate(command) if Path(word).name in LAUNCHERS]
    if not launchers or ":" in command:  # ":" separates parts with a number of ranks each
        return None
    words = command[launchers[0] + 1 :]
    for index, word in enumerate(words):
        if match := NUM_RANKS_OPTION.fullmatch(word):
            text = match[1] if match[1] is not None else "".join(words[index + 1 : index + 2])
            if not re.fullmatch(r"[1-9]\d*", text):
                raise ValueError(f"{word} {text!r} is not a number of ranks")
            return int(text)
        if not word.startswith("-") and shutil.which(word):
            return None  # here the program starts
    return None


def _make_parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} --speeds S0,S1,... [options] -- COMMAND ...",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--speeds", help="relative speed of each rank, for example 1,1,0.5,0.25")
    parser.add_argument(
        "--disturb",
        action="append",
        default=[],
        metavar="RANK:FROM:SPEED",
        help="change one rank's speed from a step (300) or a time (12s) on; may be repeated",
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="FROM",
        help="let all ranks run freely until this step (1) or time (20s), so that imports are fast",
    )
    parser.add_argument(
        "--mechanism",
        choices=MECHANISMS,
        default="auto",
        help="CPU quota by cgroup, or stopping and continuing by signals; auto: cgroup if writable",
    )
    return parser


def _joined(options: Sequence[str]) -> list[str]:
    """Options and values in one word: argparse takes "-1,1" of "--speeds -1,1" for an option."""
    joined: list[str] = []
    for word in options:
        if joined and joined[-1] in OPTIONS_WITH_VALUE:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def parse_request(arguments: Sequence[str]) -> Request:
    """Parses the command line; prints one line and exits with 2 where it is wrong."""
    arguments = list(arguments)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = arguments[:split], arguments[split + 1 :]
    parser = _make_parser()
    given = parser.parse_args(_joined(options))

    if given.speeds is None:
        parser.error("--speeds is missing; give one speed per rank, for example --speeds 1,1,0.5")
    try:
        speeds = tuple(parse_speed(text) for text in given.speeds.split(","))
    except ValueError as error:
        parser.error(f"--speeds {given.speeds}: {error}.")
    try:
        disturbances = tuple(parse_disturbance(text, len(speeds)) for text in given.disturb)
    except ValueError as error:
        parser.error(f"--disturb: {error}.")
    try:
        start = None if given.start is None else parse_moment(given.start)
    except ValueError as error:
        parser.error(f"--from: {error}.")

    if not command:
        parser.error("the command is missing; add it after --, such as -- horovodrun -np 4 ...")
    if shutil.which(command[0]) is None:
        parser.error(f"command {command[0]!r} is not found or not executable; is it on PATH?")
    try:
        num_ranks = find_num_ranks(command)
    except ValueError as error:
        parser.error(f"{error}.")
    if num_ranks not in (None, len(speeds)):
        parser.error(
            f"--speeds has {len(speeds)} values but the command starts {num_ranks} ranks; "
            "give one speed per rank."
        )
    return Request(speeds, disturbances, start, given.mechanism, tuple(command))
