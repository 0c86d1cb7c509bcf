"""Ranks come and go during training: what the learning rate's ramp does to loss and accuracy.

    python -m benchmarks.ramp
    python -m benchmarks.ramp --ranks 1 8 2 --seeds 10

A real task (scikit-learn's handwritten digits), SGD with momentum, batches of fixed size on each
rank, so that the global batch follows the number of ranks. As a step of a balanced job equals that
of one process on the whole global batch, one process represents all ranks here: what is resized is
the global batch. All runs see the same number of samples.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import hvd_dbs.keras as hvd
from benchmarks.time_budget import TimeBudget, minutes

BEFORE, AFTER = 10, 40
"""Steps around a change that are looked at."""

FOLLOWS: dict[str, dict[str, Any]] = {
    "ramp": {"ramps_down": True},
    "ramp up only": {},
    "at once": {"ramp_iterations": 0},
}
"""Ways to follow the number of ranks, with arguments of the callback: as published, the default,
and without a ramp."""
UNCHANGED = "rate unchanged"


@dataclass(frozen=True)
class Setting:
    """What is trained.

    Attributes:
        ranks: Number of ranks, phase by phase.
        epochs: Epochs of each phase.
        local_batch_size: Samples of each rank in a step.
        learning_rate: Learning rate of one rank.
        momentum: Of SGD.
    """

    ranks: tuple[int, ...]
    epochs: int
    local_batch_size: int
    learning_rate: float
    momentum: float = 0.9


class Digits:
    """1,536 scans to train on and 261 to test with, in an order that is always the same."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        scans = load_digits()
        order = np.random.default_rng(0).permutation(len(scans.target))
        images = (scans.images / 16.0).astype(np.float32)[order, :, :, np.newaxis]
        labels = scans.target.astype(np.int64)[order]
        self.test = images[:261], labels[:261]
        self.train = images[261:], labels[261:]
        self.probe = images[261:773], labels[261:773]


class Probe(keras.callbacks.Callback):
    """The loss on the same 512 training samples after each step."""

    def __init__(self, digits: Digits) -> None:
        super().__init__()
        self.losses: list[float] = []
        self._images, self._labels = (tf.constant(part) for part in digits.probe)
        self._measure: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._measure is None:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self._measure = tf.function(lambda: loss(self._labels, self.model(self._images)))
            self.losses.append(float(self._measure()))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.losses.append(float(self._measure()))


def make_model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def train(setting: Setting, follows: dict[str, Any] | None, seed: int, digits: Digits) -> Any:
    """One training: `follows` None leaves the learning rate alone."""
    sizes = [setting.local_batch_size * ranks for ranks in setting.ranks]
    balancer = hvd.Balancer(sizes[0], "even")
    model = make_model(seed)
    # What an optimizer's own learning rate is meant for is the first number of ranks.
    sgd = keras.optimizers.SGD(setting.learning_rate * setting.ranks[0], setting.momentum)
    model.compile(
        optimizer=hvd.DistributedOptimizer(sgd, balancer=balancer),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    probe = Probe(digits)
    callbacks = [hvd.callbacks.DynamicBatchSizeCallback(balancer), probe]
    if follows is not None:
        callbacks.append(hvd.callbacks.DynamicLearningRateCallback(balancer, **follows))
    changes = []
    for phase, size in enumerate(sizes):
        if phase and size != sizes[phase - 1]:
            changes.append(len(probe.losses))
            balancer.resize(size)
        begin = phase * setting.epochs
        model.fit(
            balancer.dataset(digits.train, shuffle_seed=seed),
            initial_epoch=begin,
            epochs=begin + setting.epochs,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
    loss, accuracy = model.evaluate(*digits.test, verbose=0)
    keras.backend.clear_session()
    return {
        "seed": seed,
        "test_loss": loss,
        "test_accuracy": accuracy,
        "changes": changes,
        "probe_losses": [round(value, 6) for value in probe.losses],
    }


def around(run: Mapping[str, Any], change: int) -> NDArray[np.float64]:
    """Losses around a change over the mean of the steps before it, shape `[BEFORE + AFTER]`."""
    at = run["changes"][change]
    losses = np.array(run["probe_losses"])
    return losses[at - BEFORE : at + AFTER] / losses[at - BEFORE : at].mean()


def summary(values: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Median and range over seeds."""
    return {
        "median": float(np.median(values)),
        "low": float(np.min(values)),
        "high": float(np.max(values)),
    }


def figures(variants: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """What the table shows, by variant."""
    result: dict[str, Any] = {}
    for name, runs in variants.items():
        row: dict[str, Any] = {
            "test_accuracy": summary([run["test_accuracy"] for run in runs]),
            "test_loss": summary([run["test_loss"] for run in runs]),
            "changes": [],
        }
        for change in range(len(runs[0]["changes"])):
            after = np.array([around(run, change)[BEFORE:] for run in runs])
            row["changes"].append(
                {"worst": summary(after.max(axis=1)), "mean": summary(after.mean(axis=1))}
            )
        result[name] = row
    return result


def compared(
    variants: Mapping[str, Sequence[Mapping[str, Any]]], other: str = "at once"
) -> dict[str, Any]:
    """The ramp less another way, seed by seed: accuracy in points, then mean and worst losses."""
    pairs = list(zip(variants["ramp"], variants[other], strict=True))
    accuracy = [100 * (a["test_accuracy"] - b["test_accuracy"]) for a, b in pairs]
    rows = {"points of test accuracy": accuracy}
    for change in range(len(pairs[0][0]["changes"])):
        for what, of in (("mean", np.mean), ("worst", np.max)):
            rows[f"{what} loss at change {change + 1}"] = [
                float(of(around(a, change)[BEFORE:]) - of(around(b, change)[BEFORE:]))
                for a, b in pairs
            ]
    return {
        name: {
            **summary(values),
            "higher": int(np.sum(np.array(values) > 0)),
            "lower": int(np.sum(np.array(values) < 0)),
        }
        for name, values in rows.items()
    }


def table(setting: Setting, job: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown."""
    phases = "-".join(map(str, setting.ranks))
    seeds = len(next(iter(job["runs"].values())))
    changes = [f"{a} to {b} ranks" for a, b in zip(setting.ranks, setting.ranks[1:], strict=False)]
    heads = [f"{change}: {what} loss" for change in changes for what in ("worst", "mean")]
    lines = [
        f"**Ranks {phases}, {setting.local_batch_size} samples each, learning rate "
        f"{setting.learning_rate:g} a rank, {setting.epochs} epochs a phase, {seeds} seeds**",
        "",
        f"| run | test accuracy | test loss | {' | '.join(heads)} |",
        f"|---|---:|---:|{'---:|' * len(heads)}",
    ]
    for name, row in job["figures"].items():
        cells = [_shown(row["test_accuracy"], 100, 1), _shown(row["test_loss"], 1, 3)]
        for change in row["changes"]:
            cells += [_shown(change["worst"], 1, 2), _shown(change["mean"], 1, 2)]
        cells += [""] * (2 + len(heads) - len(cells))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for other, rows in job["compared"].items():
        lines += ["", f"Ramp less {other}, seed by seed (median, range, seeds above and below 0):"]
        lines += ["", *map(_comparison, rows.items())]
    return lines


def _comparison(entry: tuple[str, Mapping[str, Any]]) -> str:
    name, row = entry
    return (
        f"- {name}: {row['median']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f}; "
        f"{row['higher']} above, {row['lower']} below)"
    )


def _shown(row: Mapping[str, float], factor: float, digits: int) -> str:
    low, high = (f"{factor * row[key]:.{digits}f}" for key in ("low", "high"))
    return f"{factor * row['median']:.{digits}f} ({low} - {high})"


def draw(jobs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A row for each learning rate: the loss around each change, medians and ranges over seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_changes = len(jobs[0]["runs"]["ramp"][0]["changes"])
    figure = Figure(figsize=(5 * num_changes, 3.6 * len(jobs)), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(len(jobs), num_changes, squeeze=False)
    steps = np.arange(-BEFORE, AFTER)
    for row, job in zip(panels, jobs, strict=True):
        setting = job["setting"]
        for change, axes in enumerate(row):
            for name, runs in job["runs"].items():
                if not runs[0]["changes"]:
                    continue
                lines = np.array([around(run, change) for run in runs])
                (line,) = axes.plot(steps, np.median(lines, axis=0), label=name, linewidth=1.2)
                axes.fill_between(
                    steps, lines.min(axis=0), lines.max(axis=0), color=line.get_color(), alpha=0.15
                )
            axes.axvline(-0.5, color="0.6", linewidth=0.8)
            old, new = setting["ranks"][change : change + 2]
            axes.set_title(
                f"{old} to {new} ranks, learning rate {setting['learning_rate']:g} a rank",
                fontsize=9,
            )
            axes.set_xlabel("steps after the change")
            axes.set_ylabel("loss over the loss before")
            axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_figure(path, dpi=110)


def run_job(
    setting: Setting,
    seeds: Sequence[int],
    digits: Digits,
    budget: TimeBudget,
    only_following: bool = False,
) -> dict[str, Any]:
    """All variants of one setting, or only those in which the rate follows the ranks.

    A seed after the other, as many as there is time for.
    """
    variants: dict[str, tuple[Setting, dict[str, Any] | None]] = {
        name: (setting, follows) for name, follows in FOLLOWS.items()
    }
    if not only_following:
        variants[UNCHANGED] = (setting, None)
    for ranks in () if only_following else dict.fromkeys(setting.ranks):
        fixed = Setting(
            (ranks,) * len(setting.ranks),
            setting.epochs,
            setting.local_batch_size,
            setting.learning_rate,
            setting.momentum,
        )
        variants[f"{ranks} rank{'s' if ranks > 1 else ''} throughout"] = (fixed, None)
    runs: dict[str, list[Any]] = {name: [] for name in variants}
    for number in budget.rounds(1, len(seeds)):
        for name, (one, follows) in variants.items():
            runs[name].append(train(one, follows, seeds[number], digits))
        print(f"  seed {seeds[number]}: done", flush=True)
    return {
        "setting": asdict(setting),
        "figures": figures(runs),
        "compared": {other: compared(runs, other) for other in FOLLOWS if other != "ramp"},
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4, 2])
    parser.add_argument("--epochs", type=int, default=4, help="of each phase")
    parser.add_argument("--local-batch-size", type=int, default=32)
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[0.01, 0.03])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--only-following", action="store_true", help="leave out runs whose rate does not change"
    )
    parser.add_argument("--output", type=Path, default=Path("build/ramp.json"))
    parser.add_argument(
        "--minutes", type=minutes, help="print what there is after so many; default: all seeds"
    )
    options = parser.parse_args()
    hvd.init()
    digits = Digits()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = []
    each = None if options.minutes is None else options.minutes / len(options.learning_rates)
    for rate in options.learning_rates:
        budget = TimeBudget(each, say=print, begun=time.time())
        setting = Setting(tuple(options.ranks), options.epochs, options.local_batch_size, rate)
        print(f"learning rate {rate:g}", flush=True)
        jobs.append(run_job(setting, seeds, digits, budget, options.only_following))
        print("\n" + "\n".join(table(setting, jobs[-1])) + "\n", flush=True)
    versions = {"python": platform.python_version(), "tensorflow": tf.__version__}
    result = {
        "format": 1,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "versions": {**versions, "keras": keras.__version__},
        "jobs": jobs,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result) + "\n")
    picture = options.output.with_suffix(".png")
    draw(jobs, picture)
    print(f"Figures: {options.output}; picture: {picture}")


if __name__ == "__main__":
    main()
