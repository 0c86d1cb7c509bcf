"""Checks of single values, for records that check themselves."""

from __future__ import annotations

import math


def require(name: str, value: object, fits: bool, expected: str) -> None:
    """Raises ValueError, naming the field, what was given and what was expected, unless it fits.

    Example:
        >>> require("slowdown", 0.5, fits=False, expected="at least 1")
        Traceback (most recent call last):
            ...
        ValueError: slowdown=0.5; expected at least 1.
    """
    if not fits:
        raise ValueError(f"{name}={value!r}; expected {expected}.")


def require_positive(name: str, value: float) -> None:
    """Raises ValueError unless the value is finite and above 0."""
    require(name, value, math.isfinite(value) and value > 0, "a number above 0")


def require_not_negative(name: str, value: float) -> None:
    """Raises ValueError unless the value is finite and at least 0."""
    require(name, value, math.isfinite(value) and value >= 0, "a number from 0 on")


def require_fraction(name: str, value: float) -> None:
    """Raises ValueError unless the value is from 0 to 1."""
    require(name, value, 0 <= value <= 1, "a number from 0 to 1")


def require_count(name: str, value: int, most: int) -> None:
    """Raises ValueError unless the value is from 1 to `most`."""
    require(name, value, 1 <= value <= most, f"a whole number from 1 to {most}")


def require_at_least(name: str, value: int, least: int) -> None:
    """Raises ValueError unless the value is at least `least`."""
    require(name, value, value >= least, f"a whole number from {least} on")


def require_period(from_step: int, to_step: int | None) -> None:
    """Raises ValueError unless the second step is after the first; None: there is no end."""
    require_at_least("from_step", from_step, 0)
    if to_step is not None:
        require("to_step", to_step, to_step > from_step, f"a step after from_step={from_step}")
