"""Dynamic Mini-batch SGD (Lin et al., 2019): its ramp on a noisy quadratic, exactly.

    scripts/bench.sh papers dynamic_minibatch            seconds

The theory that the paper gives for its ramp: set at once to k times its value, a learning rate
meets a momentum buffer with the noise of the old batches. On a quadratic with curvatures h and
gradients h w + noise of variance sigma^2 / B that needs no sampling: with v' = mu v + g and
w' = w - rate v', the second moments E[w^2], E[w v], E[v^2] follow a linear recursion. So the
figures have no seed and no spread. The expected loss is the sum of h E[w^2] / 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.rows import Row, report
from hvd_dbs.learning_rate.ramp import RampState

_BASE = 64
"""Samples of one worker; only ratios of batch sizes count."""

WAYS: dict[str, dict[str, Any]] = {
    "ramp both ways": {"ramps_down": True},
    "ramp up only": {},
    "at once": {"ramp_iterations": 0},
}
"""The published rule, the default, no ramp."""

CHANGES = ((1, 2), (1, 4), (1, 16), (16, 4), (4, 1), (16, 1))
"""Workers before and after; the paper's elastic runs go 1-16-4."""

_SETTLED = 100_000
"""Updates since the change before; its ramp is over."""


@dataclass(frozen=True)
class Quadratic:
    """The problem and the optimizer.

    Attributes:
        momentum: mu.
        rate: Learning rate of one worker. 16 workers multiply it by 16; the stiffest direction, of
            curvature 1, must stay stable then: 16 rate < 2 (1 + mu).
        curvatures: h, from flat to stiff.
    """

    momentum: float = 0.9
    rate: float = 0.02
    curvatures: tuple[float, ...] = tuple(np.geomspace(1e-3, 1.0, 16).tolist())

    def losses(self, multipliers: Sequence[float], batches: Sequence[float]) -> NDArray[np.float64]:
        """Expected loss before each update, from the stationary state of the first one.

        Args:
            multipliers: Of the learning rate, by update.
            batches: Samples of an update over those of one worker.
        """
        h = np.array(self.curvatures)
        moments = self._stationary(multipliers[0], batches[0])
        found = []
        for multiplier, batch in zip(multipliers, batches, strict=True):
            found.append(float(np.sum(h * moments[:, 0]) / 2))
            matrix, noise = self._step(multiplier, batch)
            moments = np.einsum("hij,hj->hi", matrix, moments) + noise
        return np.array(found)

    def _step(
        self, multiplier: float, batch: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What an update makes of (E[w^2], E[w v], E[v^2]): matrix and noise, by curvature."""
        h, mu, rate = np.array(self.curvatures), self.momentum, self.rate * multiplier
        variance = 1.0 / batch
        # v' = h w + mu v + n,  w' = (1 - rate h) w - rate mu v - rate n.
        a, b = 1.0 - rate * h, np.full(h.shape, -rate * mu)
        c, d = h, np.full(h.shape, mu)
        matrix = np.stack(
            [
                np.stack([a * a, 2 * a * b, b * b], axis=1),
                np.stack([a * c, a * d + b * c, b * d], axis=1),
                np.stack([c * c, 2 * c * d, d * d], axis=1),
            ],
            axis=1,
        )
        noise = np.tile([rate**2 * variance, -rate * variance, variance], (len(h), 1))
        return matrix, noise

    def _stationary(self, multiplier: float, batch: float) -> NDArray[np.float64]:
        matrix, noise = self._step(multiplier, batch)
        solved = np.linalg.solve(np.eye(3) - matrix, noise[:, :, np.newaxis])
        return np.asarray(solved[:, :, 0])


def multipliers_after(old: int, new: int, steps: int, arguments: dict[str, Any]) -> list[float]:
    """The learning rate's multiplier at each update after a change of workers."""
    settled = RampState(_BASE, **arguments).resized(_BASE * old, 0)
    changed = settled.resized(_BASE * new, _SETTLED)
    return [changed.ramp.multiplier(i) for i in range(steps)]


def around(problem: Quadratic, old: int, new: int, way: str, steps: int) -> tuple[float, float]:
    """Largest and mean expected loss in so many updates after a change, over that before it."""
    multipliers = multipliers_after(old, new, steps, WAYS[way])
    losses = problem.losses([old, *multipliers], [old, *[new] * steps])
    after = losses[1:] / losses[0]
    return float(after.max()), float(after.mean())


def rows_of(problem: Quadratic, steps: int) -> list[Row]:
    """A row for each change of workers."""
    rows = []
    name = f"quadratic, mu {problem.momentum:g}, rate {problem.rate:g}"
    for old, new in CHANGES:
        found = {way: around(problem, old, new, way, steps) for way in WAYS}
        here = "; ".join(f"{way} {peak:.2f}" for way, (peak, _) in found.items())
        means = "; ".join(f"{mean:.2f}" for _, mean in found.values())
        published = "no peak with the ramp" if new > old else "the ramp, for any k"
        what = f"{old} to {new} workers (k = {new / old:g}): largest loss over that before"
        rows.append(Row(what, published, here, f"exact; means of {steps}: {means}", name))
    return rows


def main() -> None:
    """Prints and keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.1], help="of a worker")
    parser.add_argument("--steps", type=int, default=100, help="updates after a change")
    parser.add_argument("--json", type=Path, default=Path("build/papers/dynamic_minibatch.json"))
    options = parser.parse_args()
    problems = [Quadratic(options.momentum, rate) for rate in options.rates]
    rows = [row for problem in problems for row in rows_of(problem, options.steps)]
    report("Dynamic Mini-batch SGD, noisy quadratic", rows, options.json)


if __name__ == "__main__":
    main()
