"""What `hvd-dbs verify` finds, one line a property, from what all ranks have seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hvd_dbs.cli.verify.problem import Step, VerifyProblem
from hvd_dbs.cli.wording import counted
from hvd_dbs.rank_names import name_ranks

ALLOWED = 1e-5
"""Largest difference that rounding may leave in weights of about 0.1 and in a loss of about 1.

Float32 rounds to 6e-8 of a number. Sums in another order come to less than 1e-6 over all steps on a
CPU; the rest is for GPUs, which add in an order of their own each time.
"""

_TELLING = 100 * ALLOWED

Seen = Mapping[Step, Sequence[tuple[int, Sequence[int]]]]
"""By step: each rank that made it, and the numbers of its samples that counted."""


@dataclass(frozen=True)
class Report:
    """What a rank's training has come to; differences are the largest ones, NaN if any is.

    Attributes:
        weights: Difference of its weights from those of one process.
        metrics: Difference of its losses and accuracies.
        control: Difference that an average would make which does not weigh by samples.
        digest: Of its weights, bit for bit.
    """

    weights: float
    metrics: float
    control: float
    digest: str


@dataclass(frozen=True)
class Finding:
    """Whether a property holds, and what was seen of it."""

    is_ok: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok' if self.is_ok else 'FAILED':<7} {self.text}"


def sampling_findings(problem: VerifyProblem, seen: Seen) -> list[Finding]:
    """Whether the ranks have read what they should."""
    expected = {step: numbers.tolist() for step, (numbers, _) in problem.global_batches().items()}
    rows = {step: [numbers for _, numbers in seen.get(step, [])] for step in expected}
    sizes = {step: [len(row) for row in rows[step]] for step in expected}
    uses = Counter(
        (step[0], number) for step, ranks in seen.items() for _, row in ranks for number in row
    )
    not_once = [
        f"epoch {epoch}: sample {number} was used {uses[epoch, number]} times"
        for epoch in range(problem.epochs)
        for number in range(problem.num_samples)
        if uses[epoch, number] != 1
    ]
    not_together = [
        f"{_named(step)} was made by ranks {ranks}, expected {wanted}"
        for step in {**expected, **seen}
        if (ranks := [rank for rank, _ in seen.get(step, [])])
        != (wanted := list(range(problem.size if step in expected else 0)))
    ]
    other_sums = [
        f"{_named(step)}: {sizes[step]} sum to {sum(sizes[step])}, expected {len(numbers)}"
        for step, numbers in expected.items()
        if sum(sizes[step]) != len(numbers)
    ]
    other_samples = [
        f"{_named(step)} lacks samples {sorted(missing)}"
        for step, numbers in expected.items()
        if (missing := set(numbers).difference(*rows[step]))
    ]
    left = problem.num_samples % problem.global_batch_size
    plans = {tuple(size) for size in sizes.values() if sum(size) == problem.global_batch_size}
    found = [
        _finding(
            "every sample once an epoch",
            not_once,
            f"{counted(problem.epochs, 'epoch')} of {problem.num_samples} samples",
        ),
        _finding("the same steps on all ranks", not_together, f"{problem.num_steps} an epoch"),
        _finding(
            "local batch sizes sum to the global batch size",
            other_sums,
            f"{problem.global_batch_size}, and {left} in the last step",
        ),
        _finding("each global batch has the samples that an even split has", other_samples),
    ]
    if problem.size > 1:
        text = f"{len(plans)} different ones in {len(expected)} steps"
        still = [] if len(plans) > 2 else [f"{text}, expected more than 2"]
        found.insert(0, _finding("plans change", still, text))
    return found


def training_findings(
    problem: VerifyProblem, seen: Seen, reports: Sequence[Report]
) -> list[Finding]:
    """Whether the ranks, whose reports these are, have learnt what they should."""
    # The maximum of NaN is NaN, and that is not within anything.
    weights = float(np.max([report.weights for report in reports]))
    metrics = float(np.max([report.metrics for report in reports]))
    control = float(np.min([report.control for report in reports]))
    found = [
        _within("weights as of one process with whole global batches", weights),
        _within("loss and accuracy likewise", metrics),
    ]
    if problem.size == 1:
        return found
    is_told = control > _TELLING
    text = f"an average that does not weigh by samples would make a difference of {control:.2g}"
    text += "" if is_told else f", expected {_TELLING:.2g} at least: nothing is proved"
    others = [rank for rank, one in enumerate(reports) if one.digest != reports[0].digest]
    differ = [f"{name_ranks(others)}: other ones than on rank 0"] if others else []
    num_idle = sum(not numbers for ranks in seen.values() for _, numbers in ranks)
    traces = [] if num_idle else ["no rank was without samples"]
    if not np.isfinite(weights):
        traces = ["weights are NaN or infinite"]
    return [
        *found,
        Finding(is_told, text),
        _finding("weights are the same on all ranks, bit for bit", differ),
        _finding(
            "a rank without samples contributes nothing, though its gradient is NaN",
            traces,
            counted(num_idle, "time"),
        ),
    ]


def _named(step: Step) -> str:
    return f"step {step[1]} of epoch {step[0]}"


def _finding(claim: str, faults: Sequence[str], seen: str = "") -> Finding:
    if not faults:
        return Finding(True, f"{claim}: {seen}" if seen else claim)
    more = f" (and {len(faults) - 1} more such)" if len(faults) > 1 else ""
    return Finding(False, f"{claim}: {faults[0]}{more}")


def _within(claim: str, difference: float) -> Finding:
    text = f"{claim}: largest difference {difference:.2g} (allowed {ALLOWED:.0e})"
    return Finding(difference <= ALLOWED, text)
