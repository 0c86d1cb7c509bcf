"""`hvd-dbs simulate --suite`: all built-in scenarios, in two processes and with several seeds."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hvd_dbs.cli.main import main


def call(*arguments):
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def test_suite(tmp_path):
    path = tmp_path / "out.json"
    options = ("--ranks", "4,8", "--classes", "static,pauses", "--strategy", "even")
    result = call("--suite", *options, "--strategy", "dbs", "--json", path)
    assert result.exit_code == 0, result.output
    assert "8 runs; largest |sum(b) - B|: 0" in result.output
    entries = json.loads(path.read_text())["suite"]
    assert [(entry["class"], entry["ranks"], entry["strategy"]) for entry in entries] == [
        (scenario_class, ranks, strategy)
        for scenario_class in ("static", "pauses")
        for ranks in (4, 8)
        for strategy in ("even", "dbs")
    ]


def test_suite_in_two_processes_is_the_same():
    options = ("--suite", "--ranks", "4,8", "--classes", "drift", "--strategy", "dbs")
    assert call(*options).output == call(*options, "--jobs", 2).output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_suite_that_is_ended_leaves_no_process(number):
    """Not even work that waits: the largest case alone takes longer than this test."""
    words = ["simulate", "--suite", "--ranks", "1024", "--strategy", "adaptive", "--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hvd_dbs.cli.main", *words],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)  # They have to know their parent.
        process.send_signal(number)
        errors = process.communicate(timeout=20)[1]  # Ends when the workers have ended as well.
        assert process.returncode == (1 if number == signal.SIGINT else -number)
        assert b"Traceback" not in errors
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_suite_with_several_seeds(tmp_path):
    path = tmp_path / "out.json"
    options = ("--ranks", 4, "--classes", "contention", "--strategy", "dbs", "--seed", 5)
    assert call("--suite", *options, "--seeds", 2, "--json", path).exit_code == 0
    entries = json.loads(path.read_text())["suite"]
    assert [entry["seed"] for entry in entries] == [5, 6]
    shown = call("--suite", *options, "--seeds", 2).output.splitlines()[4].split("|")[3]
    values = [entry["figures"]["throughput_over_oracle"] for entry in entries]
    assert float(shown.strip(" *")) == pytest.approx(sum(values) / 2, abs=0.001)


def test_suite_says_by_how_much_another_preset_is_ahead_and_how_sure_that_is(tmp_path):
    path = tmp_path / "out.json"
    options = ("--suite", "--ranks", 4, "--classes", "jitter", "--seed", 5)
    names = ("--strategy", "even", "--strategy", "adaptive")
    result = call(*options, *names, "--seeds", 3, "--json", path)
    found = re.search(r"ahead by ([\d.]+) \(standard error ([\d.]+)\)", result.output)
    entries = json.loads(path.read_text())["suite"]
    ratios = [entry["figures"]["throughput_over_oracle"] for entry in entries]
    ahead = np.subtract(ratios[::2], ratios[1::2])
    assert float(found[1]) == pytest.approx(ahead.mean(), abs=1e-4)
    assert float(found[2]) == pytest.approx(ahead.std(ddof=1) / 3**0.5, abs=1e-4)
    assert "ahead by" not in call(*options, *names).output
