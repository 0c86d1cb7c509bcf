"""Pages of docs/launchers/, followed literally: `scripts/test_launchers.sh [NAME]...`."""

from __future__ import annotations

import functools
import os
import re

import pytest
from hosts import machine

from tests.ahead import Jobs
from tests.jobs import horovodrun, python, run_job
from tests.launchers.pages import ACTIONS, DOCS, SETTINGS, action_of, commands, outcomes

MISSING = machine.what_is_missing()
needs_hosts = pytest.mark.skipif(bool(MISSING), reason=f"hosts cannot be emulated here: {MISSING}")

SELECTED = os.environ.get("HVD_DBS_LAUNCHERS", "").split()
ON_TWO_HOSTS = horovodrun(4, ["hvd-dbs", "doctor"], "-H", "node1:2,node2:2")
JOBS = Jobs(
    {"horovodrun": ["scripts/hosts.sh", "--hosts", "node1:2,node2:2", "--", *ON_TWO_HOSTS]},
    timeout=240,
)


@needs_hosts
@JOBS.needed("horovodrun")
def test_mpi_starts_ranks_on_another_host_without_more_options():
    job = JOBS["horovodrun"]
    assert job.exit_code == 0, job.output[-4000:]
    assert "node2: ranks 2, 3" in job.output
    assert "hvd_dbs can train here" in job.output


def test_the_table_shows_what_the_pages_do():
    header, _, *rows = re.findall(r"^\|(.*)\|$", (DOCS / "README.md").read_text(), re.MULTILINE)
    shown: dict[str, set[str]] = {page: set() for page in SETTINGS}
    for row in rows:
        launcher, *cells = [cell.strip() for cell in row.split("|")]
        if link := re.match(r"\[.*\]\((\w+)\.md\)", launcher):
            actions = [action.strip() for action in header.split("|")[1:]]
            shown[link[1]] |= {
                action for action, cell in zip(actions, cells, strict=True) if cell == "yes"
            }
    for page, actions in shown.items():
        assert actions == set(map(action_of, commands(page))) - {None}, page


@pytest.mark.skipif(not SELECTED, reason="takes minutes; scripts/test_launchers.sh runs it")
@needs_hosts
@pytest.mark.alone
@pytest.mark.parametrize("page", SELECTED)
def test_the_page_does_what_it_says(page):
    for command, exit_code, output in outcomes(page):
        assert exit_code == 0, f"{command}\n{output[-6000:]}"
        if action := action_of(command):
            assert re.search(ACTIONS[action][1], output), f"{command}\n{output[-6000:]}"
        if action == "static run":  # The same net on the same global batches as in one process.
            assert loss_in(output) == pytest.approx(loss_in(one_process()), abs=2e-3)


@functools.cache
def one_process() -> str:
    return run_job(python("examples/keras_digits.py", "--epochs", "1"), timeout=240).output


def loss_in(output: str) -> float:
    return float(re.search(r"test loss ([\d.]+)", output)[1])
