"""Model and balancer are saved together, and training goes on where it ended."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from itertools import zip_longest
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_dbs.balancer import Balancer, require_balancer, session_of
from hvd_dbs.comm import agreement
from hvd_dbs.comm.collective import ElasticCollective
from hvd_dbs.job.state_file import read_state, write_state
from hvd_dbs.keras.initial_epoch import set_initial_epoch
from hvd_dbs.keras.internals import is_built
from hvd_dbs.keras.model_build import build_for_fit, build_optimizers, weights_of_optimizers
from hvd_dbs.keras.model_optimizers import training_variables
from hvd_dbs.keras.random_streams import seed_generators, split_random_seeds
from hvd_dbs.tensorflow.variables import broadcast_variables

_LOGGER = logging.getLogger(__name__)

STATE_NAME = "training_state.json"
_WEIGHTS_NAMES = ("a.weights", "b.weights")


class TrainingStateCallback(keras.callbacks.Callback):
    """Saves model, optimizer and balancer at one moment, and goes on from there in the next run.

    Rank 0 writes weights and optimizer to one of two files in turn, and then, by a rename, the
    state that names the file. So state and weights always belong together, and a job that dies
    while it saves has what it saved before. The next run, on any number of ranks, takes them up
    when `fit` begins: it goes on with the sample after the last one used. Only rank 0's host
    needs the folder.

    The weights are bytes in the order of the model's and the optimizer's variables, for this
    callback alone: HDF5, Keras's own format, takes the process with it where a disk is full. Save
    a model to keep with `ModelCheckpoint` or `model.save`.

    What goes wrong while saving (a full disk) is said once; what was saved before is kept, and
    training goes on. Where `fit` begins again because the ranks of an elastic job have changed, its
    last commit is newer than the file. Must come after `DynamicBatchSizeCallback`, on all ranks.

    Args:
        folder: Where to save; made if it is not there. One folder for each training.
        balancer: The balancer that the optimizer was given.
        every: "epoch", or a number of steps, after which to save too; each saving takes the time
            of writing the weights on all ranks.
        restore: Whether to go on from what the folder holds. An empty folder is a new training.

    Raises:
        TypeError: If `balancer` is not a Balancer.
        ValueError: If `every` is neither; on all ranks when training begins, if the folder cannot
            be made, or what was saved is damaged, or is that of another version, strategy, data
            set or model.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        balancer: Balancer,
        every: str | int = "epoch",
        restore: bool = True,
    ) -> None:
        super().__init__()
        if every != "epoch" and (not isinstance(every, int) or every < 1):
            raise ValueError(f"every={every!r}: expected 'epoch' or a number of steps.")
        self._balancer = require_balancer(balancer, "TrainingStateCallback")
        self._position = session_of(balancer).position
        self._folder = Path(folder)
        self._every = every
        self._restore = restore
        self._steps_seen = 0
        self._steps_since = 0
        self._failed = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Takes up what was saved, on all ranks."""
        collective = self._balancer.collective
        agreement.require_equal(
            collective, {"every": repr(self._every), "restore": repr(self._restore)}
        )
        with agreement.raising_together(collective, ValueError):
            if collective.rank == 0:
                self._make_folder()
        if not self._restore:
            return
        build_for_fit(self.model)
        text = ""
        with agreement.raising_together(collective, ValueError):
            if collective.rank == 0 and not self._has_newer():
                text = self._read()
        text = agreement.allgather_text(collective, text)[0]
        if text:
            state = json.loads(text)
            # Rank 0 has seen that the model has its variables.
            build_optimizers(self.model, state["optimizers"])
            self._load(state["balancer"])
            broadcast_variables(self._variables(), root_rank=0)
            split_random_seeds(self.model)

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"The training state cannot be saved in {self._folder}: {error}. Give "
                f"TrainingStateCallback a folder that rank 0 can make and write to."
            ) from error

    def _load(self, state: dict[str, Any]) -> None:
        """Takes up the balancer's state, or says on all ranks which file does not fit."""
        path = self._folder / STATE_NAME
        try:
            self._balancer.load_state_dict(state)
        except ValueError as error:
            raise ValueError(
                f"{path} cannot be taken up: {error} Give another folder, or remove what this one "
                f"holds, to train from the start."
            ) from error
        set_initial_epoch(self.model, self._position)
        if self._balancer.rank == 0:
            _LOGGER.info("training goes on from %s, in epoch %d", path, state.get("epoch", 0))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts steps anew."""
        self._steps_seen = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves where so many steps are over."""
        position = self._position
        if position.steps_done != min(batch + 1, position.num_steps_in_epoch):
            raise ValueError(
                "TrainingStateCallback stands before DynamicBatchSizeCallback, so it would save "
                "the weights of one step with the place of another. Put it after it."
            )
        self._steps_since += batch + 1 - self._steps_seen
        self._steps_seen = batch + 1
        if self._every != "epoch" and self._steps_since >= int(self._every):
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves."""
        self._save()

    def _has_newer(self) -> bool:
        """Whether this is an elastic job whose ranks have changed: its last commit is newer."""
        is_elastic = isinstance(self._balancer.collective, ElasticCollective)
        return is_elastic and self._position.start is not None

    def _save(self) -> None:
        """Saves on rank 0; all ranks send what their time models know."""
        self._steps_since = 0
        state = self._balancer.gather_state_dict()
        if self._balancer.rank != 0:
            return
        try:
            self._write(state)
        except Exception as error:  # Saving never ends the training.
            if not self._failed:
                _LOGGER.warning(
                    "the training state cannot be saved in %s: %r; what was saved before is kept",
                    self._folder,
                    error,
                )
            self._failed = True

    def _write(self, state: dict[str, Any]) -> None:
        path = self._folder / STATE_NAME
        try:
            current = read_state(path).get("weights")
        except ValueError:
            current = None
        weights = self._folder / next(name for name in _WEIGHTS_NAMES if name != current)
        digest = hashlib.sha256()
        try:
            with weights.open("wb") as file:
                for variable in self._variables():
                    content = np.ascontiguousarray(variable.numpy()).tobytes()
                    digest.update(content)
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            saved = {"balancer": state, "weights": weights.name, "variables": self._described()}
            saved["optimizers"] = weights_of_optimizers(self.model)
            write_state(path, {**saved, "weights_checksum": digest.hexdigest()})
        except BaseException:
            with contextlib.suppress(OSError):
                weights.unlink()  # Not the file that the state names.
            raise

    def _read(self) -> str:
        """Loads all weights or none; the rest of the state as text, empty if nothing was saved."""
        path = self._folder / STATE_NAME
        if not path.exists():
            return ""
        state = read_state(path)
        weights = self._folder / str(state.get("weights"))
        if weights.name not in _WEIGHTS_NAMES:
            raise ValueError(f"{path} names no weights; expected one of {_WEIGHTS_NAMES}.")
        optimizers = state.get("optimizers", [])
        build_optimizers(self.model, optimizers)
        described = self._described()
        for saved, own in zip_longest(state.get("variables", []), described):
            if saved != own:
                hint = "" if is_built(self.model) else " Build the model before fit."
                raise ValueError(
                    f"{path} was saved with another model or optimizer: its variable {saved} "
                    f"stands where this one has {own}.{hint}"
                )
        try:
            content = weights.read_bytes()
        except OSError as error:
            raise ValueError(
                f"{weights} cannot be read: {error}. Restore it and {path} from a copy, or remove "
                f"{path} to train from the start."
            ) from error
        if hashlib.sha256(content).hexdigest() != state.get("weights_checksum"):
            raise ValueError(
                f"{weights} does not hold what was saved with {path}: its checksum "
                f"differs. Restore both from a copy, or remove {path} to train from the start."
            )
        start = 0
        for variable in self._variables():
            dtype = variable.dtype.as_numpy_dtype
            count = int(np.prod(variable.shape.as_list(), dtype=np.int64))
            values = np.frombuffer(content, dtype, count, start)
            variable.assign(values.reshape(variable.shape.as_list()))
            start += values.nbytes
        return json.dumps({"balancer": state["balancer"], "optimizers": optimizers})

    def _variables(self) -> list[tf.Variable]:
        """The model's and its optimizers' variables, and the states of random layers."""
        seeds = [generator.state for generator in seed_generators(self.model)]
        return [one.value for one in (*training_variables(self.model), *seeds)]

    def _described(self) -> list[list[Any]]:
        """Shape and type of each variable, as plain JSON data."""
        return [[one.shape.as_list(), one.dtype.name] for one in self._variables()]
