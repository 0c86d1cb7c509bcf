"""What tests of one rank share."""

from __future__ import annotations

import pytest


@pytest.fixture
def initialized():
    """A job of one rank."""
    import hvd_dbs.keras as hvd

    hvd.init()
