"""Scenario files: TOML in, a `Scenario` or an error that names the field out.

TOML and not JSON, since people write these files by hand: it has comments, needs no braces, and
a list of tables (`[[ranks]]`, `[[disturbances]]`) reads as what it is.
"""

from __future__ import annotations

import difflib
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from hvd_dbs.simulator.communication import Communication
from hvd_dbs.simulator.disturbances import DISTURBANCES
from hvd_dbs.simulator.measured_curves import MeasuredCurve, read_curves
from hvd_dbs.simulator.rank_groups import RANK_GROUPS, MeasuredRanks
from hvd_dbs.simulator.scenario import HostLoad, Noise, Scenario

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Record = TypeVar("Record")

_TABLES = ("noise", "host_load", "communication")
_LISTS = ("ranks", "disturbances")

_EXPECTED = {
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    tuple[int, ...]: "a list of whole numbers",
    tuple[float, ...]: "a list of numbers",
}


def read_scenario(path: Path, curves: Path | None = None) -> Scenario:
    """Reads a scenario file.

    Args:
        path: The TOML file; docs/simulator.md describes it.
        curves: Measured curves for the ranks with `curve = "measured"` and no file of their own.

    Raises:
        ValueError: If the file cannot be read or a field is wrong: which one, what was given,
            and what was expected.

    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}.") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: is not TOML: {error}.{_brackets(text)}") from error
    try:
        return scenario_of(table, path.stem, path.parent, curves)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def scenario_of(
    table: Mapping[str, Any], name: str, folder: Path, curves: Path | None = None
) -> Scenario:
    """The scenario that a parsed file describes.

    Args:
        table: The file's contents.
        name: Name of the scenario where the file gives none.
        folder: What the file names of measured curves are relative to.
        curves: Measured curves for the ranks that name no file.

    Raises:
        ValueError: If a field is wrong.
    """
    rest = {"name": name, **table}
    parts: dict[str, Any] = {
        "noise": _record(Noise, _table(rest, "noise"), "noise"),
        "communication": _record(Communication, _table(rest, "communication"), "communication"),
        "host_load": _host_load(rest),
    }
    groups = [
        _choice(RANK_GROUPS, "curve", entry, f"ranks[{index}]")
        for index, entry in enumerate(_tables(rest, "ranks"))
    ]
    parts["ranks"] = tuple(groups)
    parts["disturbances"] = tuple(
        _choice(DISTURBANCES, "kind", entry, f"disturbances[{index}]")
        for index, entry in enumerate(_tables(rest, "disturbances"))
    )
    measured: dict[tuple[str | None, str], MeasuredCurve] = {}
    for index, group in enumerate(groups):
        if isinstance(group, MeasuredRanks):
            file = folder / group.file if group.file is not None else curves
            if file is None:
                raise ValueError(
                    f"ranks[{index}].file is missing and no --curves is given; expected the "
                    f"name of a CSV file with the measured curve of {group.device!r}."
                )
            for device, curve in read_curves(file).items():
                measured[(group.file, device)] = curve
    if curves is not None and not any(file is None for file, _ in measured):
        raise ValueError(
            f'--curves {curves} is given, but no group of ranks has curve = "measured" without a '
            f"file of its own. Leave it out, or give such a group."
        )
    return _record(Scenario, rest, "", parts | {"measured": measured})


def scenario_of_curves(path: Path, global_batch_size: int | None = None) -> Scenario:
    """One rank for each device of a file of measured curves, with 3 % noise.

    Args:
        path: CSV file of measured curves.
        global_batch_size: Samples of all ranks; None: half of what the curves cover.

    Raises:
        ValueError: If the file is wrong or no plan within the curves has that sum.
    """
    curves = read_curves(path)
    if global_batch_size is None:
        global_batch_size = max(
            sum(curve.most for curve in curves.values()) // 2,
            sum(curve.least for curve in curves.values()),
        )
    return Scenario(
        name=path.stem,
        global_batch_size=global_batch_size,
        ranks=tuple(MeasuredRanks(device=device) for device in curves),
        steps=300,
        measured={(None, device): curve for device, curve in curves.items()},
    )


def with_seed(scenario: Scenario, seed: int | None) -> Scenario:
    """The scenario with another seed, or itself."""
    return scenario if seed is None else replace(scenario, seed=seed)


def _brackets(text: str) -> str:
    """A hint for the two lists of tables, where one is written as a table."""
    for name in _LISTS:
        if re.search(rf"^\s*\[\s*{name}\s*\]", text, re.MULTILINE):
            return f" Each group begins with [[{name}]], in two brackets."
    return ""


def _host_load(rest: dict[str, Any]) -> HostLoad | None:
    if rest.get("host_load") is False:
        del rest["host_load"]
        return None
    return _record(HostLoad, _table(rest, "host_load"), "host_load")


def _table(rest: dict[str, Any], name: str) -> Mapping[str, Any]:
    table = rest.pop(name, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"{name}={table!r}; expected a table, [{name}].")
    return table


def _tables(rest: dict[str, Any], name: str) -> list[Mapping[str, Any]]:
    tables = rest.pop(name, [])
    if not isinstance(tables, list) or not all(isinstance(entry, Mapping) for entry in tables):
        raise ValueError(f"{name}={tables!r}; expected a list of tables, [[{name}]].")
    return tables


def _choice(
    known: Mapping[str, type[Record]], key: str, table: Mapping[str, Any], place: str
) -> Record:
    """The record of the class that `table[key]` names."""
    rest = dict(table)
    name = rest.pop(key, None)
    if not isinstance(name, str) or name not in known:
        given = "is missing" if name is None else f"= {name!r}"
        raise ValueError(f"{place}.{key} {given}; expected one of {', '.join(known)}.")
    return _record(known[name], rest, place)


def _record(
    record: type[Record],
    table: Mapping[str, Any],
    place: str,
    parts: Mapping[str, Any] | None = None,
) -> Record:
    """An instance of a dataclass from a table; `parts` are fields that are made already."""
    parts = parts or {}
    prefix = f"{place}." if place else ""
    types_by_name = typing.get_type_hints(record)
    own = [entry for entry in fields(record) if entry.name not in parts]  # type: ignore[arg-type]
    names = [entry.name for entry in own]
    for name, value in table.items():
        if name not in names:
            raise ValueError(prefix + _unknown(name, value, names, is_top=not place))
    values: dict[str, Any] = {}
    for entry in own:
        if entry.name in table:
            values[entry.name] = _value(
                types_by_name[entry.name], table[entry.name], prefix + entry.name
            )
        elif entry.default is MISSING and entry.default_factory is MISSING:
            expected = _EXPECTED[types_by_name[entry.name]]
            raise ValueError(f"{prefix}{entry.name} is missing; expected {expected}.")
    try:
        return record(**values, **parts)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None


def _unknown(name: str, value: Any, names: list[str], is_top: bool) -> str:
    """What is said of a field that no record has, or of a table that no file has."""
    if is_top:
        names = [*names, *(f"[{one}]" for one in _TABLES), *(f"[[{one}]]" for one in _LISTS)]
    if isinstance(value, Mapping):
        given = f"[{name}]"
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        given = f"[[{name}]]"
    else:
        given = f"{name} = {value!r}"
    near = difflib.get_close_matches(given.split(" = ")[0], names, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"{given} is unknown; expected one of {', '.join(names)}.{meant}"


def _value(kind: Any, value: Any, place: str) -> Any:
    """The value as a field of this type takes it: int, float, str, a tuple, or one or None."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        if isinstance(value, list) and all(_fits(item, entry) for entry in value):
            return tuple(item(entry) for entry in value)
    elif _fits(kind, value):
        return kind(value)
    raise ValueError(f"{place} = {value!r}; expected {_EXPECTED[kind]}.")


def _fits(kind: Any, value: Any) -> bool:
    allowed = (int, float) if kind is float else (kind,)
    return isinstance(value, allowed) and not isinstance(value, bool)
