"""What trainings measured of kinds of device, kept in a file for the next training."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_dbs.balancing.speed_points import SpeedPoint, Speeds, merged
from hvd_dbs.job.state_file import read_state, write_state

_KIND = "hvd_dbs profile"
_FORMAT = 1
_MOST_ENTRIES = 16
_NEAR = math.log(2.0)
"""Global batch sizes are near each other up to a factor of 2."""


@dataclass(frozen=True)
class ProfileEntry:
    """What was measured of one model.

    Attributes:
        model: What tells it from other models; empty: unknown.
        global_batch_size: Samples of all ranks in a step, at the last training.
        speeds: Points by class of ranks of about the same speed.
        most: Samples of a step that fit into memory, by class, where that was found out.
    """

    model: str
    global_batch_size: int
    speeds: Speeds = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)

    def distance(self, model: str, global_batch_size: int) -> float:
        """How far its global batch size is off; infinity where it is too far, or another model."""
        distance = abs(math.log(global_batch_size / self.global_batch_size))
        return distance if self.model == model and distance <= _NEAR else math.inf


def check_profile(path: Path) -> None:
    """Checks that a file can be read, if there is one, and written.

    Raises:
        ValueError: If it cannot, or it holds something else.
    """
    if path.is_dir():
        raise ValueError(
            f"profile={str(path)!r} is a folder. Give a file in a folder that exists on rank 0's "
            f"host."
        )
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(
            f"profile={str(path)!r} cannot be written: {path.parent} is no folder that this "
            f"process may write to. Give a file in a folder that exists on rank 0's host."
        )
    _entries(path)


def read_profile(path: Path, model: str, global_batch_size: int) -> ProfileEntry | None:
    """What the file has of a model with about this global batch size; None: nothing.

    Raises:
        ValueError: If the file cannot be read, is damaged, or is something else.
    """
    return _nearest(_entries(path), model, global_batch_size)


def write_profile(path: Path, new: ProfileEntry) -> None:
    """Adds what was measured to what the file holds, of the newest models.

    Raises:
        ValueError: If the file is damaged, or is something else; it is left as it is.
        OSError: If it cannot be written.
    """
    entries = _entries(path)
    old = _nearest(entries, new.model, new.global_batch_size)
    kept = {} if old is None else old.speeds
    speeds = {
        name: merged(kept.get(name, ()), new.speeds.get(name, ()))
        for name in {**kept, **new.speeds}
    }
    most = {**({} if old is None else old.most), **new.most}
    entry = ProfileEntry(new.model, new.global_batch_size, speeds, most)
    others = [one for one in entries if one is not old]
    state = {"format": _FORMAT, "models": [_plain(one) for one in [entry, *others][:_MOST_ENTRIES]]}
    write_state(path, state, _KIND)


def _nearest(
    entries: Sequence[ProfileEntry], model: str, global_batch_size: int
) -> ProfileEntry | None:
    near = [one for one in entries if one.distance(model, global_batch_size) < math.inf]
    return min(near, key=lambda one: one.distance(model, global_batch_size), default=None)


def _entries(path: Path) -> list[ProfileEntry]:
    """All entries, the newest first; none where there is no file."""
    if not path.exists():
        return []
    state = read_state(path, _KIND)
    if state.get("format") != _FORMAT:
        raise ValueError(
            f"{path} has format {state.get('format')!r}; this version reads {_FORMAT}. Give "
            f"another file, or remove it to begin without it."
        )
    try:
        return [_entry(plain) for plain in state["models"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} holds what cannot be: {error!r}. Restore it from a copy, or remove it to "
            f"begin without it."
        ) from error


def _plain(entry: ProfileEntry) -> dict[str, Any]:
    return {
        "model": entry.model,
        "global_batch_size": entry.global_batch_size,
        "speeds": {
            name: [[point.batch_size, point.seconds, point.count] for point in points]
            for name, points in entry.speeds.items()
        },
        **({"max_batch_sizes": dict(entry.most)} if entry.most else {}),
    }


def _entry(plain: Mapping[str, Any]) -> ProfileEntry:
    size = int(plain["global_batch_size"])
    if size < 1:
        raise ValueError(f"global_batch_size={size}")
    speeds = {
        str(name): [SpeedPoint(int(b), float(t), int(count)) for b, t, count in points]
        for name, points in plain["speeds"].items()
    }
    most = {str(name): int(number) for name, number in plain.get("max_batch_sizes", {}).items()}
    if min(most.values(), default=1) < 1:
        raise ValueError(f"max_batch_sizes={most}")
    return ProfileEntry(str(plain["model"]), size, speeds, most)
