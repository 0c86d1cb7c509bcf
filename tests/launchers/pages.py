"""Runs the commands of a page in docs/launchers/ on emulated hosts, as the page gives them.

python -m tests.launchers.pages mpirun      # shows what they print
"""

from __future__ import annotations

import functools
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.jobs import REPOSITORY, run_job

DOCS = REPOSITORY / "docs" / "launchers"
ENVIRONMENTS = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_dbs/launchers"
)
"""Where scripts/test_launchers.sh puts what Ray and Spark need."""

_TIMEOUT = 1800.0


@dataclass(frozen=True)
class Setting:
    """What a page takes for granted.

    Attributes:
        hosts: For `scripts/hosts.sh --hosts`; the commands run on the first.
        before: Shell code that runs there first.
        options: More options for `scripts/hosts.sh`.
    """

    hosts: str = "node1:2,node2:2"
    before: str = ""
    options: tuple[str, ...] = ("--slow", "node2=0.5")


def _activate(name: str) -> str:
    return f"source {ENVIRONMENTS / name}/bin/activate; PATH=$PATH:{Path(sys.executable).parent}"


SETTINGS = {
    "horovodrun": Setting(),
    "mpirun": Setting(),
    "slurm": Setting(
        before="tests/launchers/slurm.sh $HOSTS; export SLURM_CONF=/tmp/slurm/slurm.conf"
    ),
    "ray": Setting(before=_activate("ray")),
    "spark": Setting(before=_activate("spark")),
    "kubernetes": Setting(
        "digits-launcher,digits-worker-0:2,digits-worker-1:2",
        "source tests/launchers/kubernetes.sh",
        ("--slow", "digits-worker-1=0.5"),
    ),
}

# What a command of each action has in it, and what it prints then; the first that fits counts.
ACTIONS = {
    "elastic run": (r"keras_elastic\.py", r"ranks now[\s\S]*test loss"),
    "static run": (r"--strategy even", r"\A(?![\s\S]*\] -> \[)[\s\S]*test loss"),
    "balanced run": (r"keras_digits\.py", r"\] -> \[.*\]: step[\s\S]*test loss"),
    "doctor": (r"hvd-dbs\)? doctor", r"hvd_dbs can train here"),
    "verify": (r"hvd-dbs\)? verify", r"ok +weights are the same on all ranks, bit for bit"),
    "report": (r"hvd-dbs\)? report", r"Changes of plan:"),
}


def action_of(command: str) -> str | None:
    """What a command is for; None if it is for another one to work."""
    return next((action for action, (part, _) in ACTIONS.items() if re.search(part, command)), None)


def commands(page: str) -> list[str]:
    """The commands of a page: what stands after `$ ` in its blocks, or a launcher pod's script."""
    if page == "kubernetes":
        job = yaml.safe_load((DOCS / "mpijob.yaml").read_text())
        pod = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        return pod["args"][0].splitlines()
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    found = re.findall(r"^\$ ((?:.*\\\n)*.*)$", "\n".join(blocks), re.MULTILINE)
    return [command.replace("\\\n", "") for command in found]


@functools.cache
def outcomes(page: str) -> list[tuple[str, int, str]]:
    """Each command of a page with its exit code and its output."""
    setting, given = SETTINGS[page], commands(page)
    lines = ["set -e", setting.before, "set +e"]
    for command in given:
        lines += ["echo; echo '== begin'", command, "code=$?; echo; echo '== end' $code"]
    words = ["scripts/hosts.sh", "--hosts", setting.hosts, *setting.options]
    job = run_job([*words, "--", "bash", "-c", "\n".join(lines)], _TIMEOUT)
    printed = re.findall(r"^== begin\n(.*?)\n^== end (\d+)$", job.output, re.DOTALL | re.MULTILINE)
    if len(printed) != len(given):
        raise RuntimeError(f"docs/launchers/{page}.md has not run to its end:\n{job.output}")
    return [
        (command, int(exit_code), output)
        for command, (output, exit_code) in zip(given, printed, strict=True)
    ]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for command, exit_code, output in outcomes(name):
            print(f"$ {command}\n{output}\n-> {exit_code}\n", flush=True)
