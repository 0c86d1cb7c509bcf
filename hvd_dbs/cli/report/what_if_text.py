"""What would be if, as text."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_dbs.cli.report.job_model import JobModel
from hvd_dbs.cli.report.keep_or_drop import keep_or_drop
from hvd_dbs.cli.report.what_if import Answer, answers
from hvd_dbs.cli.tables import table

HEADER = ("what if", "step ms", "range", "times as fast", "device-s a step")


def what_if_text(model: JobModel) -> str:
    """The table of answers, what to do with the slowest ranks, and where the figures are from."""
    found = answers(model)
    advice = keep_or_drop(model)
    lines = [table(HEADER, what_if_rows(model, found))]
    lines += [advice.text] if advice else []
    split = "stays" if model.keeps_split else "follows"
    lines.append(
        f"Ranges are 90 % of resampled rounds, of strategies 3 replays. The split {split} where "
        f'the ranks change, as with strategy="{model.strategy}".'
    )
    if model.has_few_rounds:
        lines.append("Rounds are too few for ranges: let the job run for longer.")
    if not model.knows_steps:
        lines.append("The journal does not say how many steps its rounds have: no strategies.")
    return "\n".join(lines)


def what_if_rows(model: JobModel, found: Sequence[Answer]) -> list[tuple[str, ...]]:
    """Cells of the table."""
    return [
        (
            answer.question,
            f"{1000 * answer.step_seconds:.1f}",
            f"{1000 * answer.least:.1f} to {1000 * answer.most:.1f}",
            f"{model.mean_step / answer.step_seconds:.2f}",
            f"{answer.step_seconds * answer.num_ranks:.3f}",
        )
        for answer in found
    ]
