"""What `adaptive` believes before it has seen anything.

Times are logarithms of seconds, so that 0.1 is about 10 %; a rate is per step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Priors:
    """Beliefs about ranks, and prices of decisions."""

    # The curve of a rank.
    fixed_part: float = 0.15
    """Part of a step at the first batch size that does not grow with samples."""
    fixed_part_sd: float = 0.3
    """How unsure that is."""
    roughness_sd: float = 0.03
    """Log seconds by which a curve leaves the smooth line."""
    tile: float = 16.0
    """Samples of which multiples fill a kernel's tiles."""
    tile_roughness: float = 8.0
    """Times as much as elsewhere by which a curve may leave the straight line there, at most."""
    jump_rate: float = 0.02
    """Part of batch sizes from which on another kernel is used: on four measured GPUs 2.3 % change
    a step by a tenth or more."""

    # What a round shows of it.
    noise_sd: float = 0.03
    """Log seconds by which single steps differ."""
    noise_rounds: float = 4.0
    """Rounds that this prior counts for."""
    memory_rounds: float = 60.0
    """Rounds that what was seen counts for at most."""
    drift_sd: float = 0.0002
    """Log seconds by which any rank's pace wanders in a step; square root of steps."""
    change_rate: float = 0.003
    """Changes of pace a step."""
    change_sd: float = 0.6
    """Log seconds of a change, or of a jump of the curve."""
    trend_rounds: float = 4.0
    """Rounds over which surprises are averaged, to see whether they point the same way."""
    trend_sigmas: float = 3.5
    """Deviations from which such a mean is no chance: one in about 2,000 rounds is beyond them."""
    pause_rate: float = 0.005
    """Steps that something else held up: a garbage collector, a page fault storm."""
    pause_log: float = 1.5
    """Log of how many times as long those take."""
    pause_sd: float = 1.0
    """How much that varies."""

    # Slow periods, and loads that announce them.
    slow: float = 0.2
    """Log seconds from which a rank is in a slow period, and rise of -log(1 - load) for one."""
    slow_sd: float = 0.25
    """By how much the sizes of a rank's slow periods vary, in parts of them."""
    most_load: float = 0.8
    """Load beyond which a reading says nothing more: a step would take five times as long."""
    load_memory: float = 5.0
    """Readings over which a host's usual load is averaged."""
    load_effect: float = 0.5
    """Part of such a rise by which steps get slower: all on busy processors, none on idle ones."""

    # Prices.
    reaction: float = 2.0
    """Steps until a slow rank is helped, and until what is new is seen."""
    switch: float = 2.0
    """Steps' worth of time that a change of plan costs: kernels tune themselves."""
    equal_ranks: float = 3.0
    """Ranks that count as seen to be equal beforehand, for each rank: machines often are."""
    unequal_sd: float = 0.15
    """Log seconds by which ranks differ that are not on time, and part of nearly even shares."""

    # When to decide again.
    gain_first: float = 0.3
    """Log seconds of a step that a start from the even plan is expected to gain."""
    gain_memory: float = 30.0
    """Steps over which the gains of decisions are remembered."""
    most_steps: float = 20.0
    """Steps between two decisions at most."""
    decision_share: float = 0.002
    """Part of the time that decisions may take where nothing changes."""


PRIORS = Priors()
