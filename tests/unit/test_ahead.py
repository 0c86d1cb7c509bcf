"""Jobs that are begun ahead of the tests that need them: their outcomes, and that none is left."""

from __future__ import annotations

import time

import psutil
import pytest

from tests.ahead import FOLDER, Request, Runner

MOST_SECONDS = 30.0


@pytest.fixture
def runner():
    one = Runner()
    yield one
    one.close()


def shell(script: str, timeout: float = MOST_SECONDS, **variables: str) -> Request:
    return Request(("sh", "-c", script), timeout, tuple(variables.items()))


def test_outcomes_are_those_of_the_jobs_in_whatever_order_they_are_asked_for(runner):
    slow = shell("sleep 0.5; echo $WORD > @folder@/file; echo out; echo err >&2; exit 3", WORD="hi")
    fast, missing = shell("echo fast"), Request(("no-such-program",), MOST_SECONDS)
    assert FOLDER == "@folder@"
    for request in (slow, fast, missing, slow):
        runner.begin(request)
    assert runner.outcome(fast).output == "fast\n"
    assert (runner.outcome(slow).exit_code, runner.outcome(slow).output) == (3, "out\nerr\n")
    assert (runner.folder(slow) / "file").read_text() == "hi\n"
    assert runner.outcome(missing).exit_code == -1
    assert "FileNotFoundError" in runner.outcome(missing).output
    assert "killed after" in runner.outcome(shell("sleep 300", timeout=0.1)).output


def test_nothing_is_left_of_jobs_that_nobody_waits_for():
    runner = Runner()
    # One has a session of its own, and one has lost the process that started it.
    script = "setsid sleep 300 & (sleep 300 &) ; touch @folder@/begun; sleep 300"
    requests = [shell(script, 300.0, NUMBER_OF_TEST_JOB=f"{number}") for number in range(20)]
    for request in requests:
        runner.begin(request)
    begun = runner.folder(requests[0]) / "begun"
    end = time.monotonic() + MOST_SECONDS
    while not begun.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    folder = begun.parents[1]
    runner.close()
    assert not folder.exists()
    assert not [one for one in psutil.process_iter() if is_of_a_test_job(one)]


def is_of_a_test_job(process: psutil.Process) -> bool:
    try:
        return "NUMBER_OF_TEST_JOB" in process.environ()
    except psutil.Error:
        return False
