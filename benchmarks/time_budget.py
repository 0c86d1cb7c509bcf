"""How much of a measurement fits into the minutes that it is given."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator

import psutil


class TimeBudget:
    """Minutes for a measurement of several rounds, the same on all ranks.

    Args:
        minutes: How many; None: as many as all rounds take.
        agree: Returns rank 0's number on all ranks, so that all of them stop after the same round.
        say: Is given one line, after the first of several rounds: how long the others take.
        begun: When they began, as of `now`; None: with this process, imports included.
        now: The time in seconds.
    """

    def __init__(
        self,
        minutes: float | None,
        agree: Callable[[float], float] = float,
        say: Callable[[str], None] | None = None,
        begun: float | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._begun = psutil.Process().create_time() if begun is None else begun
        self._seconds = math.inf if minutes is None else 60 * minutes
        self._agree, self._say, self._now = agree, say, now

    @property
    def seconds_used(self) -> float:
        """Rank 0's. Collective."""
        return self._agree(self._now() - self._begun)

    @property
    def seconds_left(self) -> float:
        """Rank 0's, negative after the end. Collective."""
        return self._seconds - self.seconds_used

    def rounds(self, least: int, most: float = math.inf) -> Iterator[int]:
        """Numbers of rounds, until the longest one so far would not fit any more. Collective.

        Args:
            least: Rounds to run even if the time is up.
            most: Rounds to run if there is time.
        """
        used, longest, number = self.seconds_used, 0.0, 0
        while number < most and (number < least or longest <= self._seconds - used):
            yield number
            before, used, number = used, self.seconds_used, number + 1
            longest = max(longest, used - before)
            if self._say is not None and number == 1 < most < math.inf:
                seconds = min((most - 1) * longest, max(self._seconds - used, 0.0))
                self._say(f"about {seconds / 60:.1f} minutes to go")


def budget_of_ranks(minutes: float | None) -> TimeBudget:
    """A budget for a job of Horovod that has begun; rank 0 prints how long it takes."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    def agree(seconds: float) -> float:
        return float(hvd.broadcast(tf.constant(seconds, tf.float64), 0, name="time_budget"))

    def say(line: str) -> None:
        if hvd.rank() == 0:
            print(f"{hvd.size()} ranks: {line}", flush=True)

    return TimeBudget(minutes, agree, say)


def steps_that_fit(
    seconds: float, step_seconds: float, num_rounds: int, least: int, most: int
) -> int:
    """Steps of a round, so that so many rounds fit.

    Args:
        seconds: For all rounds.
        step_seconds: Of a step, measured; of all trainings that take turns together.
        num_rounds: How many rounds are wanted.
        least: Fewest steps, even if fewer rounds fit then.
        most: Most steps; with more time there are more rounds.

    Example:
        >>> steps_that_fit(100.0, 0.5, num_rounds=8, least=4, most=24)
        24
        >>> steps_that_fit(60.0, 0.5, num_rounds=8, least=4, most=24)
        15
    """
    return max(least, min(most, int(seconds / (num_rounds * step_seconds))))


def minutes(text: str) -> float:
    """The value of an option `--minutes`.

    Raises:
        argparse.ArgumentTypeError: If it is no positive number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is given, but a positive number of minutes is expected. Give for example "
            f"--minutes 3."
        )
    return value
