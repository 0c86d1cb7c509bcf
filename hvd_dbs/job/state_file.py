"""State on disk: JSON with a checksum, replaced as a whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

TRAINING_STATE = "hvd_dbs training state"


def write_state(path: Path, state: dict[str, Any], kind: str = TRAINING_STATE) -> None:
    """Puts `state` in the place of what `path` held.

    Written to a temporary file beside it, forced to the disk and renamed: whatever happens, the
    file holds all of the old state or all of the new one.

    Args:
        path: A file, in a folder that exists.
        state: Plain JSON data, without NaN.
        kind: What it is; `read_state` refuses files of another kind.

    Raises:
        OSError: If it cannot be written; the old state is still there, and nothing else.
    """
    text = json.dumps(state, allow_nan=False, sort_keys=True)
    content = json.dumps({"kind": kind, "checksum": _checksum(text), "state": state})
    temporary = path.with_name(f"{path.name}.new")
    try:
        with temporary.open("w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_state(path: Path, kind: str = TRAINING_STATE) -> dict[str, Any]:
    """What `write_state` wrote. Nothing in the file is executed.

    Args:
        path: The file.
        kind: What was given to `write_state`.

    Raises:
        ValueError: If the file cannot be read, is not such a file, is cut short, or was changed.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise ValueError(
            f"{path} is not valid JSON, or is cut short: {error}. Restore it from a copy, or "
            f"remove it to begin without it."
        ) from error
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise ValueError(f"{path} is not a file that hvd_dbs wrote; expected one of kind {kind!r}.")
    state = content.get("state")
    if not isinstance(state, dict) or content.get("checksum") != _checksum(
        json.dumps(state, sort_keys=True)
    ):
        raise ValueError(
            f"{path} does not hold what was written: its checksum is another one. Restore it from "
            f"a copy, or remove it to begin without it."
        )
    return state


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
