"""Emulated hosts for tests: `scripts/hosts`, and why there are none here."""

from __future__ import annotations

import sys

import pytest

from tests.jobs import REPOSITORY

_SCRIPTS = str(REPOSITORY / "scripts")
if _SCRIPTS not in sys.path:
    sys.path.append(_SCRIPTS)

from hosts.cluster import Cluster  # noqa: E402
from hosts.description import Host, Link  # noqa: E402
from hosts.machine import what_is_missing  # noqa: E402

__all__ = ["MISSING", "Cluster", "Host", "Link", "needs_hosts"]

MISSING = what_is_missing(needs_tap=True)

needs_hosts = pytest.mark.skipif(bool(MISSING), reason=f"hosts cannot be emulated here: {MISSING}")
