"""examples/by_feature/elastic.py by the commands in its docstring; tests/mpi runs all scripts."""

from __future__ import annotations

import ast
import re
import textwrap

from tests.ahead import FOLDER, Jobs
from tests.jobs import REPOSITORY

SCRIPT = REPOSITORY / "examples" / "by_feature" / "elastic.py"
DOCSTRING = ast.get_docstring(ast.parse(SCRIPT.read_text()))
COMMANDS = textwrap.dedent("\n".join(re.findall(r"^    .*$", DOCSTRING, re.MULTILINE)))

# It writes hosts and discover.sh where it is run.
JOBS = Jobs(
    {"elastic": ["bash", "-ec", f"cd {FOLDER}; ln -s {SCRIPT.parents[1]} .\n{COMMANDS}"]},
    timeout=180,
)


@JOBS.needed("elastic")
def test_the_elastic_script_runs_by_its_own_commands():
    job = JOBS["elastic"]
    assert job.exit_code == 0, job.output[-3000:]
    (accuracy,) = re.findall(r"test accuracy (0\.\d+)", job.output)
    assert float(accuracy) > 0.9, job.output[-3000:]
