"""How many steps a data pipeline has to prepare before they are trained on."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

LEAST, UNKNOWN, MOST = 1, 3, 16
"""Steps after the present one: those that are always prepared, where nobody sees whether training
waits for data, and at most."""

_WAITING, _LEAST_WAITING = 0.03, 1e-3
"""Training waits for data where it takes so much longer, in parts of a step and in seconds."""
_LEAST_JUDGED, _BATCHES_JUDGED = 12, 3
"""Waits are judged over so many steps, and over all batches under way so many times: those that
are prepared together are late together, once for all of them."""
_HELPED, _LONGEST = 0.75, 5.0
_PATIENCE, _MORE_PATIENCE = 200, 2


@dataclass(frozen=True)
class StepsAhead:
    """Finds out by how many steps one rank's data pipeline has to be ahead.

    A new plan takes effect after the steps that are prepared already: the fewer they are, the
    sooner a rank that has become slow is helped. But a pipeline whose batches take n steps each has
    to work on n of them at a time. Steps are prepared one ahead until training is seen to wait for
    its data, from asking for them until they are there. With L steps ahead, L + 1 batches are under
    way; if a step takes T, of which it waits w, a batch takes (L + 1) T, and (L + 1) T / (T - w)
    batches have to be under way for a step without waiting.

    Where that does not shorten the waiting by a quarter, it is not for want of prepared steps, but
    of a faster pipeline, or it is what a step takes to begin: it is taken back, and only what comes
    on top of it counts from then on, until steps wait less again. One step less is tried after 200
    steps that have not waited; after twice as many each time that this was too few.

    Rule and thresholds are ours.

    Attributes:
        wanted: Steps ahead that this rank needs, as far as it knows.
        before: What was wanted before the last rise, and the wait that made it rise; None where
            it is known what came of it.
        usual_wait: Seconds of waiting that more steps ahead do not shorten.
        is_seen: Whether any step has shown how long it waited; until then, three are wanted.
        to_skip: Steps until a change can have had its effect.
        waits: Seconds that steps not judged yet have waited, and that they took.
        quiet_steps: Steps since the last change, none of which has waited.
        patience: Steps without waiting before one less is tried.
        is_trial: Whether the last change was such a try.

    Example:
        >>> one = StepsAhead().after(np.full(12, 0.3), np.full(12, 0.4), in_force=1)
        >>> one.wanted  # Batches take 0.8 s, and steps would take 0.1 s.
        7
        >>> one.after(np.full(32, 0.0), np.full(32, 0.1), in_force=7).wanted
        7
    """

    wanted: int = LEAST
    before: tuple[int, float] | None = None
    usual_wait: float = 0.0
    is_seen: bool = False
    to_skip: int = 0
    waits: tuple[tuple[float, float], ...] = ()
    quiet_steps: int = 0
    patience: int = _PATIENCE
    is_trial: bool = False

    def after(
        self, data_seconds: NDArray[np.float64], step_seconds: NDArray[np.float64], in_force: int
    ) -> StepsAhead:
        """What is known after some more steps.

        Args:
            data_seconds: Seconds that each waited for its data, NaN where unknown, `[steps]`.
            step_seconds: Seconds of each step as a whole, likewise.
            in_force: Steps ahead while these were run.
        """
        if in_force < self.wanted:
            return self  # The other ranks have not received it yet.
        known = np.isfinite(data_seconds) & np.isfinite(step_seconds)
        if not (known.any() or self.is_seen):
            # The first step is never seen.
            return replace(self, wanted=UNKNOWN) if len(known) > 1 else self
        pairs = zip(data_seconds[known].tolist(), step_seconds[known].tolist(), strict=True)
        waits = (*self.waits, *list(pairs)[self.to_skip :])
        to_skip = max(0, self.to_skip - int(known.sum()))
        seen = replace(self, is_seen=True, waits=waits, to_skip=to_skip)
        judged = max(_LEAST_JUDGED, _BATCHES_JUDGED * (in_force + 1))
        return seen if len(waits) < judged else seen._judged(in_force)

    def _judged(self, in_force: int) -> StepsAhead:
        waits, steps = np.array(self.waits).T
        # A pause says little about the pipeline.
        too_long = np.maximum(waits - _LONGEST * statistics.median(steps.tolist()), 0.0)
        waited, step = float(np.mean(waits - too_long)), float(np.mean(steps - too_long))
        excess = waited - self.usual_wait
        known = replace(self, before=None, waits=(), quiet_steps=self.quiet_steps + len(self.waits))
        if self.before is not None and excess > _HELPED * self.before[1]:
            return replace(known._changed_to(self.before[0]), usual_wait=waited)
        if excess <= max(_WAITING * step, _LEAST_WAITING):
            known = replace(known, usual_wait=min(self.usual_wait, waited))
            if known.quiet_steps < self.patience or self.wanted == LEAST:
                return known
            return replace(known._changed_to(self.wanted - 1), is_trial=True)
        if in_force >= MOST:
            return replace(known, quiet_steps=0)
        under_way = (in_force + 1) * step / max(step - excess, 1e-9)
        wanted = int(min(max(np.ceil(under_way) - 1, in_force + 1), MOST))
        patience = self.patience * (_MORE_PATIENCE if self.is_trial else 1)
        return replace(known._changed_to(wanted), before=(self.wanted, excess), patience=patience)

    def _changed_to(self, wanted: int) -> StepsAhead:
        return replace(self, wanted=wanted, to_skip=wanted + 1, quiet_steps=0, is_trial=False)
