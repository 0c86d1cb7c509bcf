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
    roughness_length: float = 8.0
    """Samples over which it does so alike: kernels work in tiles of about as many."""
    tile: float = 16.0
    """Samples of which multiples fill a kernel's tiles."""
    tile_roughness: float = 8.0
    """Times as much as elsewhere by which a curve may leave the straight line there."""
    jump_rate: float = 0.05
    """Part of batch sizes from which on another kernel is used."""
    jump_sd: float = 0.3
    """Log seconds of that."""

    # What a round shows of it.
    noise_sd: float = 0.03
    """Log seconds by which single steps differ."""
    noise_rounds: float = 4.0
    """Rounds that this prior counts for."""
    memory_rounds: float = 60.0
    """Rounds that what was seen counts for at most."""
    drift_sd: float = 0.0005
    """Log seconds by which any rank's pace wanders in a step; square root of steps."""
    change_rate: float = 0.003
    """Changes of pace a step."""
    change_sd: float = 0.6
    """Log seconds of a change."""
    other_curve: float = 0.5
    """D log of slowness / d log b, in parts of it: about 0.7 for a fixed delay, 0 for a factor."""
    pause_rate: float = 0.005
    """Steps that were held up by something else."""
    pause_log: float = 1.5
    """Log of how many times as long those take."""
    pause_sd: float = 1.0
    """How much that varies."""

    # Slow periods, and loads that announce them.
    slow: float = 0.2
    """Log seconds from which a rank is in a slow period."""
    slow_memory: float = 500.0
    """Steps after which a slower pace counts as the usual one."""
    slow_sd: float = 0.25
    """By how much the sizes of a rank's slow periods vary, in parts of them."""
    load_jump: float = 0.2
    """Rise of -log(1 - load) that is no noise of the reading."""
    load_effect: float = 0.5
    """Part of such a rise by which steps get slower: all on busy processors, none on idle ones."""
    load_unknown: float = 0.1
    """Sum of squared rises that this belief counts for."""

    # Prices.
    life_memory: float = 300.0
    """Steps over which changes are counted."""
    reaction: float = 2.0
    """Steps until a bad plan is taken back, a slow rank is helped, and what is new is seen."""
    switch: float = 1.0
    """Steps' worth of time that a change of plan costs: kernels tune themselves."""
    equal_ranks: float = 3.0
    """Ranks that count as seen to be equal beforehand, for each rank: machines often are."""
    unequal_sd: float = 0.15
    """Log seconds by which ranks differ that are not on time, and part of nearly even shares."""


PRIORS = Priors()
