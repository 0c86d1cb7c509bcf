"""Three sentences: what holds a job back, how sure that is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.cli.report import what_if
from hvd_dbs.cli.report.causes import Cause, Causes, causes_of
from hvd_dbs.cli.report.hindrances import hindrances
from hvd_dbs.cli.report.job_model import JobModel
from hvd_dbs.cli.report.keep_or_drop import Advice, keep_or_drop
from hvd_dbs.cli.report.rank_figures import median_parts
from hvd_dbs.cli.report.what_if import Answer
from hvd_dbs.cli.wording import counted
from hvd_dbs.comm.links import Link
from hvd_dbs.job.bottleneck import Bottleneck
from hvd_dbs.job.journal import JournalPart
from hvd_dbs.job.step_parts import percent

_SURE, _LIKELY = 0.95, 0.8

_WORTH = 1.05
"""A gain of less is within the noise of what is measured."""


@dataclass(frozen=True)
class Verdict:
    """What holds a job back.

    Attributes:
        model: Of the job.
        causes: The causes, compared.
        links: What is known of them.
    """

    model: JobModel
    causes: Causes
    links: tuple[Link, ...] = ()

    @classmethod
    def of(cls, part: JournalPart) -> Verdict:
        """The verdict on a part of a journal.

        Raises:
            ValueError: If no round has measured a step, or a rank has no usable time.
        """
        model = JobModel.of(part)
        # Each link as it was seen last.
        links = {(link.source, link.target): link for entry in part.rounds for link in entry.links}
        return cls(model, causes_of(model), tuple(links.values()))

    @property
    def text(self) -> str:
        """The three sentences, one a line, and what is known of the reasons."""
        return "\n".join([self.what, self.certainty, self.advice])

    @cached_property
    def repaired(self) -> Answer:
        """What a step would take without the cause, or with a network twice as fast."""
        model, main = self.model, self.causes.main
        if main.kind == "ranks":
            return what_if.if_fast(model, np.array(main.ranks), f"{self._who} as fast as others")
        if main.kind == "slow periods":
            return what_if.if_calm(model)
        if main.kind == "input":
            return what_if.if_fed(model)
        if main.kind == "communication":
            return what_if.if_fast_network(model)
        return what_if.as_it_was(model)

    @cached_property
    def balanced(self) -> Answer:
        """What a step would take with the best split."""
        return what_if.if_split_best(self.model)

    @cached_property
    def drop(self) -> Advice | None:
        """Whether to leave ranks out; None where there is one rank."""
        return keep_or_drop(self.model)

    @property
    def what(self) -> str:
        """What holds the job back."""
        model, main = self.model, self.causes.main
        part = percent(self.causes.saved)
        if main.kind == "ranks":
            times = f"{self._worst(model.slowness, main):.1f} times as long as the median rank"
            one = len(main.ranks) == 1
            takes = (
                "it takes" if one else "its ranks take up to" if main.host else "they take up to"
            )
            return (
                f"{_sentence(self._who)} {_hold(main)} the job back: {takes} {times} for the same "
                f"samples, and {part} of a step is waiting for that.{hindrances(model, main)}"
            )
        if main.kind == "slow periods":
            slow = 1 / model.calm[:, list(main.ranks)].min(axis=1)
            often = float(model.num_steps[slow > 1.1].sum() / model.num_steps.sum())
            return (
                f"Something that comes and goes on {self._who} holds the job back: in "
                f"{percent(often)} of the steps work takes up to {slow.max():.1f} times as long as "
                f"in the others, and {part} of a step is waiting for that.{hindrances(model, main)}"
            )
        if main.kind == "input":
            waits = (model.input_seconds / model.step_seconds[:, np.newaxis])[:, list(main.ranks)]
            longest = float(np.average(waits.max(axis=1), weights=model.num_steps))
            everybody = len(main.ranks) == model.size
            who = "ranks wait" if everybody and model.size > 1 else f"{self._who} {_wait(main)}"
            return (
                f"The input pipeline holds the job back: {who} for data during "
                f"{'up to ' if len(main.ranks) > 1 else ''}{percent(longest)} of a step."
            )
        return self._what_of_all

    @property
    def _what_of_all(self) -> str:
        model, main = self.model, self.causes.main
        parts = median_parts(model.parts)
        found = Bottleneck.of(parts, len(set(model.hosts)), self.links)
        if main.kind == "communication":
            what = "network" if len(set(model.hosts)) > 1 else "exchange of gradients"
            links = ""
            if found is not None and found.kind == "communication":
                links = found.conclusion.partition("balancing cannot help.")[2]
            return (
                f"The {what} holds the job back: communication that nothing hides takes "
                f"{percent(self.causes.saved)} of a step.{links}"
            )
        if main.kind == "unsteady":
            return (
                f"Ranks that are slow by turns hold the job back: in each step another one is the "
                f"last, and the others wait {percent(self.causes.saved)} of it for that."
            )
        if model.size == 1:
            return "Nothing holds the job back: it has one rank."
        return (
            f"Nothing holds the job back: ranks wait for slower ones "
            f"{percent(parts.waiting)} of a step, and communication and the rest take "
            f"{percent(parts.rest)}."
        )

    @property
    def certainty(self) -> str:
        """How sure that is, and from how many steps."""
        model, agreement = self.model, self.causes.agreement
        rounds = counted(len(model.num_steps), "round")
        seen = f"{counted(int(model.num_steps.sum()), 'step')} in {rounds}"
        seen = seen if model.knows_steps else rounds
        if model.has_few_rounds:
            return f"This is a first impression, from {seen}: let the job run for longer."
        sure = "sure" if agreement >= _SURE else "likely" if agreement >= _LIKELY else "not sure"
        return (
            f"This is {sure}: {percent(agreement)} of resampled rounds show the same, from the "
            f"newest {seen}."
        )

    @property
    def advice(self) -> str:
        """What to do, and what it would gain."""
        main = self.causes.main
        gain = self._gain(self.repaired)
        if main.kind == "ranks":
            equal = f"If {self._pronoun} as fast as the median rank, a step would take {gain}."
            return f"{self._split} {equal}"
        if main.kind == "slow periods":
            return f"Find what else runs on {self._place}: without it a step would take {gain}."
        if main.kind == "input":
            return (
                f"Make the input pipeline faster (prefetch, parallel map, a faster disk; "
                f"docs/data.md): without waiting for data a step would take {gain}."
            )
        if main.kind == "communication":
            return (
                f"Balancing cannot help; a faster network, a larger global batch or compressed "
                f"gradients can: with a network twice as fast a step would take {gain}."
            )
        if main.kind == "unsteady":
            return (
                "Balancing cannot help: look for what interrupts the ranks for short times, such "
                "as other processes, garbage collection or too few cores."
            )
        return self._nothing_to_do

    @property
    def _split(self) -> str:
        """What balancing would bring, or leaving ranks out."""
        if self.drop is not None and self.drop.drops:
            return self.drop.text
        if self._times(self.balanced) < _WORTH:
            return "The plan is about as good as it can be for these ranks."
        gain = self._gain(self.balanced)
        if self.model.keeps_split:
            return f'Balance the batch: with strategy="adaptive" a step would take {gain}.'
        return f"A better split is known, so let the job go on or look at its bounds: {gain}."

    @property
    def _nothing_to_do(self) -> str:
        if self.model.size == 1:
            return "There is nothing to balance."
        if self.drop is not None and self.drop.drops:
            return self.drop.text
        times = self._times(self.balanced)
        if times >= _WORTH:
            return f"There is little to do: the best split would bring {self._gain(self.balanced)}."
        return f"There is nothing to do: the best split would be {max(times, 1):.2f} times as fast."

    def _gain(self, answer: Answer) -> str:
        return (
            f"{1000 * answer.step_seconds:.1f} ms ({1000 * answer.least:.1f} to "
            f"{1000 * answer.most:.1f}) instead of {1000 * self.model.mean_step:.1f} ms, "
            f"{self._times(answer):.2f} times as fast"
        )

    def _times(self, answer: Answer) -> float:
        return self.model.mean_step / answer.step_seconds

    def _worst(self, rows: NDArray[np.float64], main: Cause) -> float:
        chosen = np.average(rows, axis=0, weights=self.model.num_steps)[list(main.ranks)]
        return float(chosen.max())

    @property
    def _who(self) -> str:
        model, main = self.model, self.causes.main
        if main.host:
            return f"host {main.host}"
        if len(main.ranks) == model.size and model.size > 1:
            return "all ranks"
        if len(main.ranks) == 1:
            return f"rank {main.ranks[0]} on {model.hosts[main.ranks[0]]}"
        return f"ranks {', '.join(str(rank) for rank in sorted(main.ranks))}"

    @property
    def _pronoun(self) -> str:
        one = self.causes.main.host or len(self.causes.main.ranks) == 1
        return "it were" if one else "they were"

    @property
    def _place(self) -> str:
        hosts = sorted({self.model.hosts[rank] for rank in self.causes.main.ranks})
        return f"host {hosts[0]}" if len(hosts) == 1 else "these hosts"


def _hold(main: Cause) -> str:
    return "holds" if main.host or len(main.ranks) == 1 else "hold"


def _wait(main: Cause) -> str:
    return "waits" if main.host or len(main.ranks) == 1 else "wait"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
