"""The user's mistakes: one message, no traceback, exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


class InputError(click.ClickException):
    """Something that the user gave is wrong."""

    exit_code = 2


@contextmanager
def input_errors() -> Iterator[None]:
    """Turns a ValueError into an `InputError` with the same message; likewise what is too large."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error
    except (MemoryError, OverflowError) as error:
        raise InputError(
            f"what was asked for is too large for this machine ({error}). Give smaller numbers."
        ) from error
