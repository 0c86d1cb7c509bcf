"""Begins the jobs that the selected tests need, and has the tests run that need none meanwhile."""

from __future__ import annotations

import signal

import hypothesis
import pytest

from tests import ahead

# A shell has its background jobs ignore interrupts, and what they start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's business.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that wait for jobs come after those that need none, and those alone come last."""
    items.sort(key=lambda item: 2 if _is_alone(item) else 1 if _needs(item) else 0)


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.option.collectonly:
        ahead.begin(dict.fromkeys(request for item in session.items for request in _needs(item)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With --durations also those of jobs."""
    if terminalreporter.config.option.durations:
        for words, (seconds, cpu_seconds) in sorted(
            ahead.seconds().items(), key=lambda it: -it[1][0]
        ):
            terminalreporter.write_line(
                f"{seconds:6.1f} s, CPU {cpu_seconds:6.1f} s: {words[-180:]}"
            )


def pytest_unconfigure() -> None:
    ahead.close()


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _needs(item: pytest.Item) -> list[ahead.Request]:
    return [request for mark in item.iter_markers("needs") for request in mark.args]
