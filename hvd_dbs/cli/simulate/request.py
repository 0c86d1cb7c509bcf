"""What the user asked `hvd-dbs simulate` for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvd_dbs.balancing import Strategy
from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.rank_groups import MOST_RANKS
from hvd_dbs.simulator.result_file import write_json
from hvd_dbs.simulator.simulation import preset, preset_names


@dataclass(frozen=True)
class Request:
    """The command's options; None where one is not given.

    Attributes:
        scenario: Scenario file.
        replay: Journal of a job.
        curves: File of measured curves.
        names: Presets.
        every: Cadence instead of the presets' own.
        seed: Instead of the scenario's own.
        global_batch_size: For curves without a scenario.
        sizes: Numbers of ranks of the suite.
        classes: Scenario classes of the suite.
        num_seeds: Seeds of each case of the suite.
        jobs: Processes for the suite.
        json_path: Where the figures go.
        picture_path: Where the picture goes.
    """

    scenario: Path | None
    replay: Path | None
    curves: Path | None
    names: tuple[str, ...]
    every: str | int | None
    seed: int | None
    global_batch_size: int | None
    sizes: tuple[int, ...] | None
    classes: tuple[str, ...] | None
    num_seeds: int
    jobs: int
    json_path: Path | None
    picture_path: Path | None

    @classmethod
    def of(cls, **given: Any) -> Request:
        """A request from the command's options.

        Raises:
            ValueError: If one is wrong.
        """
        names = given.pop("names")
        known = preset_names()
        for name in names:
            if name != "all" and name not in known:
                raise ValueError(f"--strategy {name}; expected all or one of {', '.join(known)}.")
        ranks, classes = given.pop("ranks"), given.pop("classes")
        every = given.pop("every")
        if every is not None and every not in ("epoch", "automatic"):
            every = _whole("--every", every, 1, ', "epoch" or "automatic"')
        for option, path in (("--json", given["json_path"]), ("--picture", given["picture_path"])):
            if path is not None and not path.parent.is_dir():
                raise ValueError(f"{option} {path}: there is no folder {path.parent}. Make it.")
        return cls(
            names=known if "all" in names else tuple(dict.fromkeys(names)),
            sizes=None if ranks is None else tuple(_size(text) for text in ranks.split(",")),
            classes=None if classes is None else tuple(map(str.strip, classes.split(","))),
            every=every,
            **given,
        )

    def strategy(self, name: str, conditions: Conditions) -> Strategy:
        """The preset with the cadence asked for; those that never decide keep to that."""
        strategy = preset(name, conditions)
        if self.every is None or strategy.every is None:
            return strategy
        return replace(strategy, every=self.every)

    def save(self, kind: str, entries: list[dict[str, Any]]) -> None:
        """Writes the JSON file, if one is asked for.

        Raises:
            ValueError: If it cannot be written.
        """
        if self.json_path is not None:
            try:
                write_json(self.json_path, kind, entries)
            except OSError as error:
                raise ValueError(f"--json {self.json_path}: {error}.") from error


def _size(text: str) -> int:
    size = _whole("--ranks", text, 4)
    if size > MOST_RANKS:
        raise ValueError(f"--ranks {text}; expected at most {MOST_RANKS}.")
    return size


def _whole(option: str, text: str, least: int, others: str = "") -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        given = text or '""'
        raise ValueError(f"{option} {given}; expected a whole number from {least} on{others}.")
    return value
