"""Keras without its parts for scikit-learn and matplotlib, in the processes of tests' jobs.

It imports both where they are installed, which takes each process about a second. No job uses what
Keras has for them; whoever else imports them gets them.
"""

from __future__ import annotations

import importlib.abc
import sys
from types import FrameType

_OPTIONAL = ("sklearn", "matplotlib")


class _NotForKeras(importlib.abc.MetaPathFinder):
    """Finds nothing that is optional for Keras where Keras asks for it."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name.partition(".")[0] in _OPTIONAL and _importer(sys._getframe(1)).startswith("keras."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _importer(frame: FrameType | None) -> str:
    """The module whose import statement is under way."""
    while frame and frame.f_globals["__name__"].startswith("importlib."):
        frame = frame.f_back
    return str(frame.f_globals["__name__"]) if frame else ""


sys.meta_path.insert(0, _NotForKeras())
