"""Run what is missing: several workers, one machine, any number of interruptions.

Workers share nothing but the folders. Each goes through the same list, passes over cells that are
finished or locked by another, and trains the rest; so a killed worker loses nothing, and more may
be started at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geof.data.catalogue import load
from geof.data.records import GraphSet, NodeGraph
from geof.errors import DataError, GeometryError
from geof.experiments.cells import Cell
from geof.training import Result, Task, Watch, run_experiment
from geof.training.folder import read_result
from geof.training.plan import Plan


@dataclass
class Worker:
    """Trains cells, keeping data and tasks from one to the next.

    Attributes:
        work: Where run folders go.
        data_root: Where raw files are.
        should_stop: Asked after every epoch and between cells.
        say: Told what happens.
        deadline: Time (``time.monotonic``) after which no cell is begun; ``None`` for never.
    """

    work: Path
    data_root: Path | None = None
    should_stop: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda text: None
    deadline: float | None = None
    _data: dict[str, NodeGraph | GraphSet] = field(default_factory=dict)
    _task: tuple[Any, Task] | None = None

    def run(self, cells: Sequence[Cell], finished: Callable[[Cell], None]) -> int:
        """Train every cell that is neither finished nor in other hands.

        Args:
            cells: In this order.
            finished: Told of each cell done here.

        Returns:
            How many cells failed here.
        """
        failed = 0
        for cell in cells:
            folder = cell.folder(self.work)
            if self.should_stop() or self._is_late():
                break
            if folder.is_dir() and (read_result(folder) or (folder / "failure.json").exists()):
                continue
            try:
                result = self._train(cell, folder)
            except GeometryError as error:  # recorded in the folder, shown in the table
                self.say(f"{cell.row.name} split {cell.split}: {error}")
                failed += 1
            except DataError as error:
                if "another run is at work" not in str(error):
                    raise
                continue
            else:
                self.say(_line(cell, result))
            finished(cell)
        return failed

    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _train(self, cell: Cell, folder: Path) -> Result:
        row = cell.row
        if row.dataset not in self._data:
            self._data[row.dataset] = load(row.dataset, data_root=self.data_root)
        data = self._data[row.dataset]
        plan = row.plan(cell.split)
        experiment = plan.experiment(
            self._task_of(data, plan),
            read_test=not row.changes,  # an ablation chooses settings: validation only
            record={
                "data": {"content_hash": data.content_hash, "notes": list(data.notes)},
                "class_names": list(data.class_names),
            },
        )
        watch = Watch(should_stop=self.should_stop, save_seconds=30.0)
        return run_experiment(experiment, out=folder, watch=watch)[1]

    def _task_of(self, data: NodeGraph | GraphSet, plan: Plan) -> Task:
        """Return the task, the one before where only the method differs."""
        key = (data.name, plan.task, plan.split, plan.signature, plan.batches, plan.training.seed)
        if self._task is None or self._task[0] != key:
            self._task = (key, plan.build_task(data, self.data_root))
        return self._task[1]


def _line(cell: Cell, result: Result) -> str:
    test = "" if result.test is None else f"test {result.test:.2f}, "
    return (
        f"{cell.row.name} split {cell.split}: {test}validation {result.validation:.2f} at epoch "
        f"{result.best_epoch} of {result.epochs}, {result.seconds_per_epoch:.2f} s an epoch"
    )
