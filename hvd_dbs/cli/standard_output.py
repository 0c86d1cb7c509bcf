"""Text for the user, and one line where it cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

import click


def say(text: str) -> None:
    """Writes a text and a newline to standard output; characters that it lacks are escaped.

    Raises:
        click.ClickException: If that fails, such as on a full disk; exit code 1.
    """
    try:
        try:
            click.echo(text)
        except UnicodeEncodeError:  # Of a name in the text: a locale such as Latin-1 has few.
            known = sys.stdout.encoding
            click.echo(text.encode(known, "backslashreplace").decode(known))
    except OSError as error:
        if error.errno == errno.EPIPE:  # Who reads has seen enough; click ends quietly.
            raise
        _forget_what_is_left()
        raise click.ClickException(
            f"standard output cannot be written: {error.strerror}."
        ) from error


def _forget_what_is_left() -> None:
    """Python would try again when it ends, and fail with a message of its own."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
