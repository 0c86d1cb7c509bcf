"""scripts/demo.sh and scripts/bench.sh, as far as they come without an environment."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.jobs import REPOSITORY

KINDS = re.findall(
    r"\w+", re.search(r"^  (op .*)\) ;;$", (REPOSITORY / "scripts/bench.sh").read_text(), re.M)[1]
)
WITHOUT_MINUTES = ("round", "costs", "clocks", "papers", "bounds", "ablation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy in which nothing can be set up or measured."""
    folder = tmp_path_factory.mktemp("measurements")
    (folder / "scripts").mkdir()
    for name in ("demo.sh", "bench.sh"):
        shutil.copy(REPOSITORY / "scripts" / name, folder / "scripts")
    (folder / "scripts" / "environment.sh").write_text("exit 77\n")
    shutil.copytree(REPOSITORY / "benchmarks", folder / "benchmarks")
    return folder


def run(folder, *words):
    return subprocess.run(
        [folder / "scripts" / words[0], *words[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_demo_explains_itself_at_once(folder):
    ended = run(folder, "demo.sh", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--minutes" in ended.stdout
    assert "--speeds" in ended.stdout
    assert "#" not in ended.stdout


@pytest.mark.parametrize(("words", "minutes"), [((), "3"), (("--minutes", "0.5"), "0.5")])
def test_the_demo_says_first_how_long_it_takes(folder, words, minutes):
    ended = run(folder, "demo.sh", *words)
    assert ended.returncode == 77
    assert ended.stdout.startswith(f"This takes about {minutes} minutes")


@pytest.mark.parametrize("script", [("demo.sh",), ("bench.sh", "op")])
@pytest.mark.parametrize("minutes", [(), ("",), ("0",), ("0.0",), ("-1",), ("3x",)])
def test_other_minutes_are_an_error_of_two_sentences(folder, script, minutes):
    ended = run(folder, *script, "--minutes", *minutes)
    assert ended.returncode == 2
    assert "a positive number of minutes is expected. Give for example" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_benchmark_explains_itself_at_once(folder, kind):
    ended = run(folder, "bench.sh", kind, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(ended.stdout.splitlines()) > 5
    assert ("  --minutes" in ended.stdout) == (kind not in WITHOUT_MINUTES)


def test_a_part_of_a_kind_explains_itself(folder):
    assert "--faults" in run(folder, "bench.sh", "papers", "dbs", "--help").stdout


@pytest.mark.parametrize("kind", KINDS)
def test_only_kinds_that_can_stop_early_take_minutes(folder, kind):
    ended = run(folder, "bench.sh", kind, "--minutes", "5")
    assert ended.returncode == (2 if kind in WITHOUT_MINUTES else 77)
    assert ("cannot stop early" in ended.stderr) == (kind in WITHOUT_MINUTES)
