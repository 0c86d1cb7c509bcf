"""Text by which ranks see that they were given the same parts with the same settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from typing import Any

import numpy as np


def identity_of(part: object) -> str:
    """Type and settings of a model, a solver or a guard, and of the parts inside of it.

    It is the same in each process, since it names neither addresses nor what depends on hashing.
    Functions count by name, arrays by what they hold.

    Example:
        >>> from hvd_dbs.balancing.solvers.equal_finish import EqualFinish
        >>> from hvd_dbs.balancing.solvers.guards import DeadBand
        >>> identity_of(DeadBand(EqualFinish(), band=0.1))
        'DeadBand(band=0.1, solver=EqualFinish())'
    """
    return _identity(part, ())


def _identity(part: object, around: tuple[int, ...]) -> str:
    if isinstance(part, np.generic):
        part = part.item()
    if part is None or isinstance(part, str | bytes | int | float | complex):
        return repr(part)
    if id(part) in around:
        return "..."
    inside = (*around, id(part))
    if isinstance(part, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(part).data).hexdigest()[:16]
        return f"array(dtype={part.dtype}, shape={part.shape}, {digest})"
    if isinstance(part, Mapping):
        return f"{{{_fields(part, inside, ': ')}}}"
    if isinstance(part, list | tuple):
        return f"[{', '.join(_identity(item, inside) for item in part)}]"
    if isinstance(part, Set):
        return f"{{{', '.join(sorted(_identity(item, inside) for item in part))}}}"
    if hasattr(part, "__qualname__"):
        return f"{part.__module__}.{part.__qualname__}"
    settings = _settings(part)
    if not settings and " at 0x" not in repr(part):
        return repr(part)
    return f"{type(part).__qualname__}({_fields(settings, inside, '=')})"


def _settings(part: object) -> dict[str, object]:
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    in_slots = {name: getattr(part, name) for name in slots if hasattr(part, name)}
    return {**in_slots, **getattr(part, "__dict__", {})}


def _fields(settings: Mapping[Any, object], around: tuple[int, ...], sign: str) -> str:
    named = {str(name): _identity(value, around) for name, value in settings.items()}
    return ", ".join(f"{name}{sign}{named[name]}" for name in sorted(named))
