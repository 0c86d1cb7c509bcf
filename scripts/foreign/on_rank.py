"""Runs one script or one file of tests on a rank: `on_rank.py FOLDER SCRIPT [ARGUMENT ...]`.

MNIST is replaced by a few made-up digits. At the end the trained weights of all ranks are compared.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import keras
import numpy as np
from keras.src.datasets import mnist


def main(folder: Path, script: Path, arguments: list[str]) -> None:
    """Runs the script as `python SCRIPT` would."""
    random = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", 512), ("test", 128)):
        parts[f"x_{part}"] = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        parts[f"y_{part}"] = random.integers(0, 10, count, dtype=np.uint8)
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("HOROVOD_RANK", "0")
    digits = folder / f"digits-{rank}.npz"
    np.savez(digits, **parts)
    mnist.get_file = lambda *_, **__: str(digits)

    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    if script.name.startswith("test_"):
        import pytest

        report = folder / f"{script.stem}-{rank}.xml"
        options = ["-q", "-p", "no:cacheprovider", "--tb=short", "--durations=3"]
        pytest.main([str(script), *options, f"--junitxml={report}", *arguments])
        return
    models = _remembered_models()
    runpy.run_path(str(script), run_name="__main__")
    _require_equal_weights(models)


def _remembered_models() -> list[keras.Model]:
    """All models that will be made."""
    models: list[keras.Model] = []
    make = keras.Model.__new__

    def make_and_remember(cls, *arguments, **options):
        model = make(cls, *arguments, **options)
        models.append(model)
        return model

    keras.Model.__new__ = make_and_remember
    return models


def _require_equal_weights(models: list[keras.Model]) -> None:
    import horovod.tensorflow as hvd

    weights = {id(weight): weight for model in models for weight in model.trainable_weights}
    mine = np.concatenate([weight.numpy().ravel() for weight in weights.values()])
    rows = hvd.allgather(mine[np.newaxis]).numpy()
    if not (np.isfinite(rows).all() and (rows == rows[0]).all()):
        raise SystemExit(f"FOREIGN: weights of ranks differ by {np.abs(rows - rows[0]).max():.2g}")
    print(f"FOREIGN: {len(rows)} ranks have the same {mine.size} weights", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
