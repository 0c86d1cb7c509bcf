"""Where a rank runs, by all names that a user may know, and values given by such names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

_ALL_OTHERS = "*"


@dataclass(frozen=True)
class Place:
    """Where a rank runs.

    Attributes:
        host: The host's own name for itself, such as "node7.cluster.local".
        device: Kind of device that the rank computes on, such as "NVIDIA A100-SXM4-80GB" or the
            processor's model name; empty: unknown.
        launcher_name: What the launcher calls the host: an id on Ray, a hash on Spark; may be
            empty.
        cores: Cores' worth of time that the rank has where it computes on a processor; 0 where it
            computes on a GPU, or it is unknown.
    """

    host: str
    device: str = ""
    launcher_name: str = ""
    cores: float = 0.0

    @property
    def host_names(self) -> list[str]:
        """The names of its host: its own one, the first label of that, the launcher's."""
        names = (self.host, self.host.partition(".")[0], self.launcher_name)
        return [name for name in dict.fromkeys(names) if name]

    @property
    def speed_class(self) -> str:
        """What ranks of about the same speed have in common; empty: unknown.

        Processors of one model differ in how many cores a rank has of them.
        """
        if not self.device or not self.cores:
            return self.device
        return f"{self.device}, {self.cores:.3g} core{'s' if self.cores != 1 else ''}"

    def __str__(self) -> str:
        """Host and kind of device."""
        return f"{self.host} ({self.device})" if self.device else self.host


def values_by_rank(
    name: str, given: Mapping[Any, Any], places: Sequence[Place], *, may_be_unused: bool
) -> list[Any]:
    """Each rank's value, from values by host or kind of device.

    A host's name counts before patterns, and patterns count before "*", which is all other ranks.

    Args:
        name: What the values are called in errors.
        given: Values by a host's name, or by a shell pattern of kinds of devices or hosts.
        places: Where each rank runs, by rank.
        may_be_unused: Whether patterns may match no rank, since other ranks may come.

    Returns:
        Values by rank, shape `[size]`.

    Raises:
        ValueError: If a rank has no value, or two patterns with different values match it, or a
            pattern matches no rank.

    Example:
        >>> places = [Place("node7", "NVIDIA A100-SXM4-80GB"), Place("node8", "Tesla T4")]
        >>> values_by_rank("b", {"NVIDIA A100*": 256, "node8": 64}, places, may_be_unused=False)
        [256, 64]
    """
    patterns = [key for key in given if isinstance(key, str) and key != _ALL_OTHERS]
    # Thousands of ranks run in few kinds of places.
    matched = {place: _patterns_of(place, patterns) for place in dict.fromkeys(places)}
    keys = {place: _key(name, given, place, matched[place]) for place in matched}
    missing = [place for place, key in keys.items() if key is None]
    if missing:
        raise ValueError(
            f"{name} has no entry for host {_listed([str(place) for place in missing])}; it has "
            f"{_listed([str(key) for key in given])}. Give one entry for each host or kind of "
            f"device of the job, such as 'NVIDIA A100*', or '*' for all others."
        )
    used = {key for keys_of_place in matched.values() for key in keys_of_place}
    unused = [key for key in patterns if _is_wild(key) and key not in used]
    if unused and not may_be_unused:
        raise ValueError(
            f"{name}[{unused[0]!r}] matches no rank; the ranks are on host "
            f"{_listed([str(place) for place in matched])}. Correct the pattern or leave it out."
        )
    return [given[keys[place]] for place in places]


def _key(name: str, given: Mapping[Any, Any], place: Place, patterns: Sequence[str]) -> str | None:
    """The entry that counts for a rank; None: there is none."""
    for host in place.host_names:
        if host in given:
            return host
    if any(given[key] != given[patterns[0]] for key in patterns):
        values = ", ".join(f"{key!r}: {given[key]!r}" for key in patterns)
        raise ValueError(
            f"{name} has several entries for host {place}: {values}. Give patterns that do not "
            f"overlap, or an entry for the host by its name, which counts before patterns."
        )
    if patterns:
        return patterns[0]
    return _ALL_OTHERS if _ALL_OTHERS in given else None


def _patterns_of(place: Place, patterns: Sequence[str]) -> list[str]:
    """The patterns that match a place."""
    names = [*([place.device] if place.device else []), *place.host_names]
    # Names of devices may have brackets, so a name in full is none but itself.
    return [key for key in patterns if any(key == n or fnmatchcase(n, key) for n in names)]


def _is_wild(key: str) -> bool:
    return any(sign in key for sign in "*?[")


def _listed(texts: Sequence[str], most: int = 8) -> str:
    return (", ".join(texts[:most]) + (", ..." if len(texts) > most else "")) or "none"
