"""What the README shows is what happens: its script, after the change that the diff makes."""

from __future__ import annotations

import re

from tests.ahead import Jobs
from tests.jobs import REPOSITORY, python

README = (REPOSITORY / "README.md").read_text()

PROLOGUE = """
import keras, numpy
images = numpy.random.default_rng(0).normal(size=(1200, 8)).astype("float32")
labels = numpy.arange(1200) % 3
augment = lambda x, y: (x, y)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])
"""
LOSS = "loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
DIFF = re.search(r"```diff\n(.*?)```", README, re.DOTALL)[1].splitlines()
BEFORE, AFTER = ("\n".join(line[1:] for line in DIFF if not line.startswith(sign)) for sign in "+-")

JOBS = Jobs({"code": python("-c", PROLOGUE + AFTER.replace("loss=...", LOSS))}, timeout=120)


@JOBS.needed("code")
def test_the_script_runs_after_the_change():
    compile(BEFORE, "README.md", "exec")
    job = JOBS["code"]
    assert job.exit_code == 0, job.output[-3000:]
    assert "Epoch 10/10" in job.output


def test_the_quick_start_makes_the_same_change():
    page = (REPOSITORY / "docs" / "index.md").read_text()
    assert re.search(r"```diff\n(.*?)```", page, re.DOTALL)[1].splitlines() == DIFF


def test_every_strategy_is_in_the_table():
    from hvd_dbs.balancing import strategies

    rows = re.findall(r"^\| `(\w+)`", README, re.MULTILINE)
    assert set(strategies.PRESETS) <= set(rows)


def test_every_file_it_names_exists():
    for name in re.findall(r"`((?:docs|examples|scripts|tests)/[\w./]+)`", README):
        assert (REPOSITORY / name).exists(), name
