"""Under mpirun a rank that dies ends the job, with its name; the next job goes on, on other ranks.

Three ranks are ended by an exception of one, two go on and are ended by `kill -9`, one goes on.
"""

from __future__ import annotations

import json
from collections import Counter

import numpy as np

from tests.jobs import mpirun, python, run_job
from tests.mpi import resume_job
from tests.mpi.resume_job import NUM_EPOCHS, NUM_SAMPLES, B

SECONDS = 200.0
"""Start of the processes included; a rank that has failed ends within 20 s of its error."""

REASONS = {
    "exception": r"rank 2 of 3 (host ",
    "kill": "mpirun noticed that process rank 1 with PID",
}


def test_training_goes_on_on_other_ranks_as_if_nothing_had_been(tmp_path):
    for fault, num_ranks in (("exception", 3), ("kill", 2)):
        command = python("-m", "tests.mpi.resume_job", str(tmp_path), fault)
        job = run_job(mpirun(num_ranks, command), timeout=SECONDS)
        assert job.exit_code not in (0, -1), job.output[-6000:]
        assert REASONS[fault] in job.output, job.output[-6000:]
        if fault == "exception":
            assert ") has failed: ArithmeticError: a fault on purpose\n" in job.output
            # No other rank reports itself.
            assert job.output.count("Traceback (most recent call last)") == 1, job.output[-6000:]
    weights, expected = resume_job.main(tmp_path, "none")

    np.testing.assert_allclose(weights, expected, atol=1e-5)
    counts: Counter[tuple[int, int]] = Counter()
    for file in tmp_path.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            epoch, start, samples = json.loads(line)
            counts[epoch, start] += samples
    # In each epoch each global batch once, of the samples at the same positions.
    starts = range(0, NUM_SAMPLES, B)
    assert counts == {(e, s): min(B, NUM_SAMPLES - s) for e in range(NUM_EPOCHS) for s in starts}
