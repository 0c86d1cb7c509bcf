"""What to do where a training step has run out of memory."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING

import tensorflow as tf

from hvd_dbs.job.places import own_place
from hvd_dbs.watchdog.crash_report import explain_failures, last_line

if TYPE_CHECKING:
    from hvd_dbs.job.session import Session


def what_to_do(
    session: Session, error: tf.errors.ResourceExhaustedError, *, is_in_fit: bool = True
) -> str:
    """One line: which step of which rank does not fit, and what to set. Notes the bound.

    Args:
        session: The job, in a step.
        error: TensorFlow's.
        is_in_fit: Whether `fit` makes the step, which can also find the bound by itself.
    """
    rank, size, place = session.collective.rank, session.micro_batch_size, own_place()
    num_samples = session.loop.samples_under_way
    cut = "" if size is None else f", in micro-batches of {size} samples"
    if size is None:
        most = session.memory.note_lack(num_samples)
        search = ', or max_batch_size="auto"' if is_in_fit else ""
        advice = (
            f"Bound it: Balancer(..., max_batch_size=...) for {place.host!r} or "
            f"{place.device!r}: {most}; or give micro_batch_size{search}."
        )
    else:
        advice = f"Give smaller ones: micro_batch_size={max(1, size // 2)}."
    # TensorFlow's text has the graph around the line that says what was to be allocated.
    found = re.search(r"OOM when allocating[^\n]*", error.message)
    text = found[0] if found else last_line(error)
    return (
        f"Rank {rank} (host {place.host}) has run out of memory in a step of "
        f"{num_samples} samples{cut}: {text}. {advice}"
    )


def explain_lack_of_memory(session: Session) -> None:
    """Lets a step that ends a loop of one's own say the same: nobody can catch its error there."""
    reference = weakref.ref(session)  # What a process keeps must not keep a job.

    def explain(error: BaseException) -> str:
        job = reference()
        if job is None or not isinstance(error, tf.errors.ResourceExhaustedError):
            return ""
        is_in_step = job.loop.samples_under_way > 0
        return what_to_do(job, error, is_in_fit=False) if is_in_step else ""

    explain_failures(explain)
