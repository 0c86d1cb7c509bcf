"""Synchronous Horovod training at full speed on unequal machines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_dbs.balancer import Balancer

__version__ = "0.2.0"
__all__ = ["Balancer", "__version__"]


def __getattr__(name: str) -> Any:
    """`Balancer`, once it is asked for: it needs TensorFlow and Horovod, which take seconds."""
    if name == "Balancer":
        return import_module("hvd_dbs.balancer").Balancer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
