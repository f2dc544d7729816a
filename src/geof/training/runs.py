"""Many runs in one process: data and tasks are kept from one to the next. A search's trials too."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geof.data.sources import Loaded, read_data
from geof.errors import DataError, FolderLockedError, NonFiniteError, StoppedError
from geof.methods.registry import load_plugin
from geof.training.config import RunConfig
from geof.training.tasks import Task, build_task
from geof.training.trainer import Result, Trainer, Watch

_LOCK_SECONDS = 0.5
"""From one look at a locked folder to the next."""


@dataclass
class Runner:
    """Trains one run after another.

    A pickled copy reads its data anew, except data made in Python, which it carries along.

    Attributes:
        tasks: How many tasks to keep.
        patience: Seconds to wait for another process that works in a run's folder.
        save_seconds: Time from one saved state of a run to the next.
        plugin: A Python file that registers methods, imported by a copy in another process.
    """

    tasks: int = 1
    patience: float = 0.0
    save_seconds: float = 10.0
    plugin: Path | None = None
    _data: dict[Any, Loaded] = field(default_factory=dict, repr=False)
    _tasks: dict[Any, Task] = field(default_factory=dict, repr=False)

    def read(self, config: RunConfig) -> Loaded:
        """Return the data of a run.

        Raises:
            DataError: If they cannot be read.
        """
        key = _data_key(config)
        if key not in self._data:
            self._data[key] = read_data(config.data, config.task)
        return self._data[key]

    def keep(self, config: RunConfig, loaded: Loaded) -> None:
        """Take data that were read, or made, elsewhere."""
        self._data[_data_key(config)] = loaded

    def task(self, config: RunConfig) -> Task:
        """Return the task of a run, the same as before where only the method differs."""
        training = config.training
        key = (
            *(_data_key(config), config.task, config.split, config.folds, config.seed),
            *(config.signature, training.batch_size, training.fanouts, training.hidden_edges),
        )
        task = self._tasks.pop(key, None)
        if task is None:
            while len(self._tasks) >= self.tasks:  # room first: one more might not fit
                self._tasks.pop(next(iter(self._tasks)))
            task = build_task(config, self.read(config).data)
        self._tasks[key] = task  # the last one used goes last
        return task

    def train(
        self, config: RunConfig, out: Path, should_stop: Callable[[], bool] = lambda: False
    ) -> Result:
        """Train a run in its folder, or go on with it there.

        Raises:
            FolderLockedError: If another process still works there when patience is over.
            StoppedError: If ``should_stop`` said so; the state is saved.
            GeofError: Whatever else is wrong with it.
        """
        task, schema = self.task(config), self.read(config).schema
        watch = Watch(should_stop=should_stop, save_seconds=self.save_seconds)
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return Trainer(config, task, out=out, watch=watch, schema=schema).fit()
            except FolderLockedError as error:
                if time.monotonic() >= deadline:
                    raise
                if should_stop():
                    raise StoppedError(
                        f"Stopped while another process works in '{out}'."
                    ) from error
            time.sleep(_LOCK_SECONDS)

    def __getstate__(self) -> dict[str, Any]:
        made = {key: data for key, data in self._data.items() if key[0].kind is None}
        return {**self.__dict__, "_data": made, "_tasks": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.plugin is not None:
            load_plugin(self.plugin)


@dataclass(frozen=True)
class Trial:
    """A point of the space to be trained.

    Attributes:
        folder: For its runs.
        runs: Their configs, one per split.
    """

    folder: Path
    runs: tuple[RunConfig, ...]


@dataclass
class TrialTrainer:
    """Trains trials, in the process that draws them or in a worker.

    Attributes:
        runner: Trains the runs.
        content_hash: Of the data the study was begun with; ``None`` takes any.
    """

    runner: Runner = field(default_factory=lambda: Runner(patience=math.inf))
    content_hash: str | None = None

    def __call__(self, trial: Trial, should_stop: Callable[[], bool]) -> dict[str, float]:
        """Return the validation metric of every split.

        Raises:
            DataError: If something is wrong that no other options would mend.
            StoppedError: If ``should_stop`` said so; the state is saved.
        """
        scores = {}
        for config in trial.runs:
            self.require_data(config)
            result = self.runner.train(config, trial.folder / f"split-{config.split}", should_stop)
            scores[config.split] = result.validation
        if not all(map(math.isfinite, scores.values())):
            raise NonFiniteError(f"Expected a finite validation metric (got {scores}).")
        return scores

    def require_data(self, config: RunConfig) -> None:
        """Raise ``DataError`` if the data are no longer what they were."""
        data = self.runner.read(config).data
        if self.content_hash not in (None, data.content_hash):
            raise DataError(
                f"Expected the data the study was begun with, but '{data.name}' has changed. Bring "
                "them back or begin another study."
            )


def _data_key(config: RunConfig) -> Any:
    """Return what data are read by; only of a user's own files the task asks for a label."""
    return config.data, None if config.data.kind == "dataset" else config.task
