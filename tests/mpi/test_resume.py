"""A job on 3 ranks dies in mid-epoch; one on 2 ranks goes on with what it saved."""

from __future__ import annotations

import json

import numpy as np

from tests.jobs import mpirun, python, run_job
from tests.mpi.resume_job import NUM_SAMPLES, B


def test_training_goes_on_on_other_ranks_as_if_nothing_had_been(tmp_path):
    for ranks, steps in ((3, 4), (2, 0)):
        command = python("-m", "tests.mpi.resume_job", str(tmp_path), str(steps))
        job = run_job(mpirun(ranks, command), timeout=200)
        assert (job.exit_code == 0) == (steps == 0), job.output[-6000:]

    counts: dict[tuple[int, int], int] = {}
    for file in sorted(tmp_path.glob("?-?.json")):
        ended = json.loads(file.read_text())
        for epoch, start, samples in ended["noted"]:
            counts[epoch, start] = counts.get((epoch, start), 0) + samples
        if file.name.startswith("2-"):
            expected = json.loads((tmp_path / "expected.json").read_text())
            np.testing.assert_allclose(ended["weights"], expected, atol=1e-5)
    # In each epoch each global batch once, of the samples at the same positions.
    starts = range(0, NUM_SAMPLES, B)
    assert counts == {(e, s): min(B, NUM_SAMPLES - s) for e in range(3) for s in starts}
