"""`hvd-dbs verify` passes as things are, and names what is broken. Run on 3 ranks."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

import hvd_dbs.keras as hvd
from hvd_dbs.cli.main import main
from hvd_dbs.cli.verify import training as verify_training
from hvd_dbs.sampling import EpochOrder
from hvd_dbs.tensorflow import gradient_reducer
from tests.jobs import REPOSITORY
from tests.mpi.together import on_last_rank, shared

PAGE = (REPOSITORY / "docs/verify.md").read_text()

WEIGHTS = "weights as of one process"
METRICS = "loss and accuracy"
SAME = "weights are the same on all ranks"
NAN = "a rank without samples"
ONCE = "every sample once"
BATCHES = "each global batch"
CONTROL = "an average that does not weigh"


def verify(patched=None, name=None, replacement=None):
    """The lines of a run in which something is replaced, and what those say that FAILED."""
    with pytest.MonkeyPatch.context() as patch:
        if patched is not None:
            patch.setattr(patched, name, replacement)
        result = CliRunner().invoke(main, ["verify", "--seed", "3"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    lines = shared(result.output).splitlines()
    failed = [line.split(maxsplit=1)[1] for line in lines if line.startswith("FAILED")]
    assert result.exit_code == (1 if failed else 0)
    return lines, failed


def names(failed):
    known = (WEIGHTS, METRICS, SAME, NAN, ONCE, BATCHES, CONTROL)
    return [next(name for name in known if text.startswith(name)) for text in failed]


def without_numbers(line):
    return re.sub(r"\d[\d.e-]*", "N", line)


def weighing(change):
    def weighted_allreduce(tensors, weight, **options):
        return original(tensors, change(weight), **{**options, "total_weight": None})

    original = gradient_reducer.weighted_allreduce
    return gradient_reducer, "weighted_allreduce", weighted_allreduce


def check_verify_passes_and_says_what_its_page_shows():
    lines, failed = verify()
    assert failed == []
    # The log has lines of its own where a rank is slow by chance.
    lines = [line for line in lines if line.startswith(("ok ", f"{hvd.size()} ranks on "))]
    assert len(lines) == 11, lines
    output = PAGE.partition("hvd-dbs verify\n")[2].partition("\n\n")[0]
    shown = [line for line in output.splitlines() if line.startswith("    ok  ")]
    assert len(shown) > 5
    assert {without_numbers(line.strip()) for line in shown} <= set(map(without_numbers, lines))


def check_verify_finds_ranks_that_count_the_same():
    lines, failed = verify(*weighing(lambda weight: tf.cast(weight > 0, tf.float32)))
    assert names(failed) == [WEIGHTS, METRICS]
    # It makes the difference that the control, in one process, says it would make.
    given = re.search(r"difference ([\d.]+) ", failed[0])[1]
    assert any(line.endswith(f"would make a difference of {given}") for line in lines), lines


def check_verify_finds_a_rank_without_samples_that_counts():
    lines, failed = verify(*weighing(lambda weight: tf.cast(weight, tf.float32) + 1e-6))
    assert names(failed) == [WEIGHTS, METRICS, NAN]
    assert f"{WEIGHTS} with whole global batches: largest difference nan" in "\n".join(lines)


def check_verify_finds_samples_that_are_read_twice():
    original = EpochOrder.at

    def at(self, positions):
        return original(self, positions - (positions == 5))

    _, failed = verify(EpochOrder, "at", at)
    assert names(failed) == [ONCE]
    assert "times (and 5 more such)" in failed[0]


def check_verify_finds_weights_that_differ_between_ranks():
    original = verify_training._flat

    def flat(model):
        weights = original(model)
        own = isinstance(model, verify_training._WatchedModel)
        weights[0] += on_last_rank(np.float32(1e-7), np.float32(0)) if own else 0
        return weights

    _, failed = verify(verify_training, "_flat", flat)
    assert names(failed) == [SAME]
    assert f"rank {hvd.size() - 1}: other ones than on rank 0" in failed[0]


def check_verify_finds_a_comparison_that_cannot_tell():
    def plain_average(rows):
        numbers = np.concatenate([np.array(row, np.int64) for row in rows])
        return numbers, np.ones(numbers.size, np.float32)

    _, failed = verify(verify_training, "plain_average", plain_average)
    assert names(failed) == [CONTROL]


def check_verify_fails_on_all_ranks_where_one_meets_an_error():
    def fail(*arguments):
        if hvd.rank() == hvd.size() - 1:
            raise RuntimeError("no memory left")
        return original(*arguments)

    original = verify_training.compare
    with pytest.raises(RuntimeError, match="no memory left"):
        verify(verify_training, "compare", fail)
