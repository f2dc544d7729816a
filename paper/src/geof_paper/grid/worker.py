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
from typing import Any, TypeAlias

from geof.data.catalogue import load
from geof.data.records import GraphSet, NodeGraph
from geof.errors import DataError, GeofError, StoppedError
from geof.io import write_json
from geof.machine import note_machine
from geof.training import Result, Task, Watch, run_experiment
from geof.training.plan import Plan
from geof.training.run_folder import read_result
from geof_paper.grid.cells import Cell

Finished: TypeAlias = Callable[[Cell, NodeGraph | GraphSet], object]

FAILURE = "failure.json"
"""In the folder of a run that did not come to its end, and why."""


@dataclass
class Worker:
    """Trains cells, keeping data and tasks from one to the next.

    Attributes:
        work: Where run folders go.
        data_root: Where raw files are.
        should_stop: Asked after every epoch and between cells.
        say: Told what happens.
        deadline: Time (``time.monotonic``) after which no cell is begun; ``None`` for never.
        seconds: What a cell is expected to take, ``None`` where nothing is known; one that does
            not fit before the deadline is passed over.
        is_done: Whether a cell needs no run although there is no folder of it.
        retry: Whether cells that failed before are tried again.
    """

    work: Path
    data_root: Path | None = None
    should_stop: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda text: None
    deadline: float | None = None
    seconds: Callable[[Cell], float | None] = lambda cell: None
    is_done: Callable[[Cell], bool] = lambda cell: False
    retry: bool = False
    _data: dict[str, NodeGraph | GraphSet] = field(default_factory=dict)
    _absent: set[str] = field(default_factory=set)
    _task: tuple[Any, Task] | None = None

    def run(self, cells: Sequence[Cell], finished: Finished) -> int:
        """Train every cell that is neither finished nor in other hands.

        A cell that fails, for whatever reason, is said and recorded, and the next one is begun.

        Args:
            cells: In this order.
            finished: Told of each cell done here, failed ones too, with its data.

        Returns:
            How many cells failed here, those without data included.
        """
        failed = 0
        for cell in cells:
            if self.should_stop():
                break
            if self.is_settled(cell) or not self.fits(cell):
                continue
            data = self._data_of(cell.row.dataset)
            if data is None:
                failed += 1
                continue
            try:
                self.say(_line(cell, self._train(cell, data)))
            except _BusyError:
                continue
            except StoppedError:  # its state is saved
                break
            except Exception as error:  # of whatever kind: the table shows it, the grid goes on
                self._record(cell, error)
                failed += 1
            failed += self._finish(cell, data, finished)
        return failed

    def measure(self, cells: Sequence[Cell], finished: Finished) -> int:
        """Call ``finished`` for cells that were trained before; return how many failed."""
        failed = 0
        for cell in cells:
            data = self._data_of(cell.row.dataset)
            if self.should_stop() or data is None:
                break
            failed += self._finish(cell, data, finished)
        return failed

    def _finish(self, cell: Cell, data: NodeGraph | GraphSet, finished: Finished) -> int:
        try:
            finished(cell, data)
        except GeofError as error:
            self.say(f"{cell.row.name} split {cell.split}, measured: {error}")
            return 1
        return 0

    def is_settled(self, cell: Cell) -> bool:
        """Return whether a cell is finished, or failed and not to be tried again."""
        folder = cell.folder(self.work)
        if folder.is_dir() and read_result(folder) is not None:
            return True
        return self.is_done(cell) or ((folder / FAILURE).exists() and not self.retry)

    def fits(self, cell: Cell) -> bool:
        """Return whether a cell would end before the deadline, as far as is known."""
        if self.deadline is None:
            return True
        left = self.deadline - time.monotonic()
        return left > 0 and (self.seconds(cell) or 0.0) <= left

    def _data_of(self, dataset: str) -> NodeGraph | GraphSet | None:
        """Return a dataset, ``None`` (said once) if it cannot be read."""
        if dataset not in self._data and dataset not in self._absent:
            try:
                self._data[dataset] = load(dataset, data_root=self.data_root)
            except DataError as error:
                self.say(f"{dataset}: {error}")
                self._absent.add(dataset)
        return self._data.get(dataset)

    def _train(self, cell: Cell, data: NodeGraph | GraphSet) -> Result:
        (cell.folder(self.work) / FAILURE).unlink(missing_ok=True)  # it is tried again
        plan = cell.row.plan(cell.split)
        experiment = plan.experiment(
            self._task_of(data, plan),
            read_test=cell.row.reads_test,
            record={
                "data": {"content_hash": data.content_hash, "notes": list(data.notes)},
                "class_names": list(data.class_names),
            },
        )
        watch = Watch(should_stop=self.should_stop, save_seconds=30.0)
        folder = cell.folder(self.work)
        try:
            result = run_experiment(experiment, out=folder, watch=watch)[1]
        except DataError as error:
            if "another run is at work" in str(error):
                raise _BusyError from error
            raise
        note_machine(folder)
        return result

    def _record(self, cell: Cell, error: Exception) -> None:
        """Write down a failure where the loop has not done so."""
        path = cell.folder(self.work) / FAILURE
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"error": f"{type(error).__name__}: {error}"})
        self.say(f"{cell.row.name} split {cell.split} failed: {error}")

    def _task_of(self, data: NodeGraph | GraphSet, plan: Plan) -> Task:
        """Return the task, the one before where only the method differs."""
        key = (data.name, plan.task, plan.split, plan.signature, plan.batches, plan.training.seed)
        if self._task is None or self._task[0] != key:
            self._task = (key, plan.build_task(data, self.data_root))
        return self._task[1]


class _BusyError(Exception):
    """Another worker has the cell."""


def _line(cell: Cell, result: Result) -> str:
    test = "" if result.test is None else f"test {result.test:.2f}, "
    return (
        f"{cell.row.name} split {cell.split}: {test}validation {result.validation:.2f} at epoch "
        f"{result.best_epoch} of {result.epochs}, {result.seconds_per_epoch:.2f} s an epoch"
    )
