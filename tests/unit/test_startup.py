"""What jobs' Keras does without (`tests/startup`), everybody else in the job gets."""

from __future__ import annotations

import os

from tests.jobs import job_environment, python, run_job

ASKS = """
try:
    import sklearn.base
except ImportError:
    sklearn = None
"""
PROGRAM = """
from keras import wrappers
import users

assert wrappers.sklearn is None
assert users.sklearn.base.there
"""


def test_only_keras_does_without_scikit_learn(tmp_path):
    files = {
        "sklearn/__init__.py": "",
        "sklearn/base.py": "there = True",
        "keras/__init__.py": "",
        "keras/wrappers.py": ASKS,
        "users.py": ASKS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    path = f"{tmp_path}{os.pathsep}{job_environment()['PYTHONPATH']}"
    job = run_job(python("-c", PROGRAM), timeout=60, environment={"PYTHONPATH": path})
    assert job.exit_code == 0, job.output
