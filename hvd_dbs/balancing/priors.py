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
    """Part of a step at the first batch size that does not grow with samples: launching kernels
    and the optimizer take some of each step."""
    fixed_part_sd: float = 0.3
    """Deviation of that: between none and a half is common."""
    roughness_sd: float = 0.03
    """Log seconds by which a curve leaves the smooth line: kernels differ by a few per cent."""
    tile: float = 16.0
    """Samples of which multiples fill tiles: kernels compute blocks of 8 to 32."""
    jump_rate: float = 0.02
    """Part of batch sizes that are off the smooth line by a tenth or more: 2.3 % on four measured
    GPUs."""
    jump_sd: float = 0.25
    """Log seconds by which those are: a quarter of a step. More is another pace."""

    # What a round shows of it.
    noise_sd: float = 0.03
    """Log seconds by which single steps differ: about what quiet machines show."""
    noise_rounds: float = 4.0
    """Rounds that this prior counts for: few, since machines differ by orders of magnitude."""
    memory_rounds: float = 60.0
    """Rounds that observations count for at most: deviations are then known within a tenth, and
    follow a machine that becomes noisier."""
    wander_sd: float = 0.0002
    """Log seconds by which any rank's pace wanders in a step, in square roots of steps: 0.6 % in
    1,000 steps, as temperatures do."""
    change_rate: float = 0.003
    """Changes of pace a step: one in 300 steps, since other jobs last for minutes."""
    change_sd: float = 0.6
    """Log seconds of a change: up to twice as slow or as fast is common."""
    trend_rounds: float = 4.0
    """Rounds over which surprises are averaged, to see whether they point the same way, and the
    part of a step before its first bucket: few, so that a drift is followed soon."""
    trend_sigmas: float = 3.5
    """Deviations from which such a mean is no chance: one in about 2,000 rounds exceeds them."""
    pause_rate: float = 0.005
    """Steps that something else held up, such as a garbage collector: less than one in a
    hundred."""
    pause_log: float = 1.5
    """Log of how many times as long those take: four to five times."""
    pause_sd: float = 1.0
    """Deviation of that: twice as long is a pause, and so is ten times."""

    # Slow periods.
    slow: float = 0.2
    """Log seconds from which a rank is in a slow period: less is within what paces wander by."""
    slow_sd: float = 0.25
    """Deviation of the sizes of a rank's slow periods, in parts of them: neighbours differ."""

    # Prices.
    reaction: float = 2.0
    """Steps from a decision until its plan holds, since data are prepared ahead; as many show what
    is new in a plan."""
    switch: float = 2.0
    """Busy steps' worth of time that a change of plan costs at least: memory and caches have to fit
    it. First steps, in which kernels tune themselves, are measured."""
    equal_ranks: float = 3.0
    """Ranks of a kind that count as seen to be alike beforehand, for each rank: machines often
    are."""
    unequal_sd: float = 0.15
    """Log seconds by which ranks of a kind differ at least that are not alike, and deviation of
    shares of a kind: equal accelerators differ by 8 % in the mean, and by a fifth at most (Sinha
    et al., SC 2022)."""

    # When to decide again.
    false_signals: float = 0.005
    """Change signals a step of the job where nothing has changed: one in 200 steps, a tenth as many
    as there are decisions in peace."""
    gain_first: float = 0.3
    """Log seconds of a step that a start from the even plan is expected to gain: unequal machines
    are why this is used."""
    gain_memory: float = 30.0
    """Steps over which the gains of decisions are remembered: a round or two in peace, ten while
    plans improve."""
    most_steps: float = 20.0
    """Steps between two decisions, unless these cost too much: a change without a signal is seen
    within these."""
    decision_share: float = 0.002
    """Part of the time that decisions may take where nothing changes: too little to measure."""


PRIORS = Priors()
