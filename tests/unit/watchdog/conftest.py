"""Jobs with threads of heartbeats."""

from __future__ import annotations

import logging

import pytest

from tests.unit.watchdog.heartbeat_jobs import Job


@pytest.fixture
def make_job(caplog):
    jobs = []

    def make(*arguments, **options):
        jobs.append(Job(*arguments, **options))
        return jobs[-1]

    with caplog.at_level(logging.INFO):
        yield make
    for job in jobs:
        job.stop()
