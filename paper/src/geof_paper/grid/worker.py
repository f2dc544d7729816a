"""Run what is missing of a grid: here, in processes or on a cluster, over any interruption.

One process judges which cells are wanted and records what came of them; workers train and measure.
A grid may be started several times over: a cell that another process has is passed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from geof.data.records import GraphSet, NodeGraph
from geof.errors import DataError, FolderLockedError, GeofError, StoppedError
from geof.executor import Executor, InProcess, Outcome
from geof.io import write_json
from geof.training import Result, RunConfig
from geof.training.run_folder import read_result
from geof.training.trials import Runner
from geof_paper.grid.cells import Cell
from geof_paper.grid.grid import Grid
from geof_paper.grid.records import FAILURE, record_cells

_PATIENCE_SECONDS = 10.0
"""For a folder that is locked: workers whose parent was killed leave it after their epoch."""


@dataclass(frozen=True)
class Report:
    """What a worker has to say about a cell.

    Attributes:
        said: Lines for people.
        failed: Whether a measure failed.
        absent: Why the cell's data cannot be read, if so.
    """

    said: tuple[str, ...] = ()
    failed: bool = False
    absent: str | None = None


@dataclass
class CellTrainer:
    """Trains and measures cells, keeping data and tasks from one to the next.

    Attributes:
        grid: Where run folders are and what is measured.
        data_root: Where raw files are.
        runner: Trains the runs.
    """

    grid: Grid
    data_root: Path | None = None
    runner: Runner = field(
        default_factory=lambda: Runner(patience=_PATIENCE_SECONDS, save_seconds=30.0)
    )

    def __call__(self, cell: Cell, should_stop: Callable[[], bool]) -> Report:
        """Train a cell unless it is, and measure it unless that is done.

        Raises:
            FolderLockedError: If another process has the cell.
            StoppedError: If ``should_stop`` said so; the state is saved.
            Exception: Whatever training fails of.
        """
        config = self._config(cell)
        try:
            data = self.runner.read(config).data
        except DataError as error:
            return Report(absent=f"{cell.row.dataset}: {error}")
        folder = cell.folder(self.grid.work)
        said = []
        if not folder.is_dir() or read_result(folder) is None:
            said.append(_line(cell, self.runner.train(config, folder, should_stop)))
        problem = self._measure(cell, data)
        return Report((*said, *problem), failed=bool(problem))

    def _config(self, cell: Cell) -> RunConfig:
        data = replace(cell.config.data, data_root=self.data_root)
        return replace(cell.config, data=data)

    def _measure(self, cell: Cell, data: NodeGraph | GraphSet) -> list[str]:
        try:
            self.grid.measure_cell(cell, data)
        except GeofError as error:
            return [f"{cell.row.name} split {cell.split}, measured: {error}"]
        return []


def train_cells(
    grid: Grid,
    executor: Executor | None = None,
    *,
    data_root: Path | None = None,
    budget: float | None = None,
    retry: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Train and measure every cell that is neither finished nor in other hands; record each.

    A cell that fails, for whatever reason, is said and recorded, and the others go on.

    Args:
        grid: What to run, in its order.
        executor: Where; in this process if not said.
        data_root: Where raw files are.
        budget: Begin no cell that would end after so many seconds, as far as is known.
        retry: Whether cells that failed before are tried again.
        should_stop: Asked between cells and, by workers, after every epoch.
        say: Told what happens.

    Returns:
        How many cells failed here, those without data included.
    """
    deadline = None if budget is None else time.monotonic() + budget
    session = _Session(grid, executor or InProcess(), deadline, retry, should_stop, say)
    trainer = CellTrainer(replace(grid, cells=()), data_root)
    session.run(trainer, grid.cells)
    if session.busy:  # perhaps no longer
        session.run(trainer, tuple(session.busy))
    return session.failed


@dataclass
class _Session:
    """One call of :func:`train_cells`.

    Attributes:
        deadline: Time (``time.monotonic``) after which no cell is begun; ``None`` for never.
        failed: How many cells failed.
        absent: Datasets that cannot be read.
        busy: Cells that were in other hands.
    """

    grid: Grid
    executor: Executor
    deadline: float | None
    retry: bool
    should_stop: Callable[[], bool]
    say: Callable[[str], None]
    failed: int = 0
    absent: set[str] = field(default_factory=set)
    busy: list[Cell] = field(default_factory=list)

    def run(self, trainer: CellTrainer, cells: Iterable[Cell]) -> None:
        self.busy = []
        outcomes = self.executor.run(trainer, self._wanted(cells), should_stop=self.should_stop)
        with closing(outcomes):
            for cell, outcome in outcomes:
                self._take(cell, outcome)

    def _wanted(self, cells: Iterable[Cell]) -> Iterator[Cell]:
        """Yield what is still to be run, judged when its turn comes."""
        unmeasured = set(self.grid.unmeasured())
        for cell in cells:
            if cell not in unmeasured and (self._is_settled(cell) or not self._fits(cell)):
                continue
            if cell.row.dataset in self.absent:
                self.failed += 1
                continue
            (cell.folder(self.grid.work) / FAILURE).unlink(missing_ok=True)  # it is tried again
            yield cell

    def _is_settled(self, cell: Cell) -> bool:
        """Return whether a cell is finished, or failed and not to be tried again."""
        if self.grid.is_finished(cell):
            return True
        return self.grid.failure(cell) is not None and not self.retry

    def _fits(self, cell: Cell) -> bool:
        """Return whether a cell would end before the deadline, as far as is known."""
        if self.deadline is None:
            return True
        return (self.grid.seconds(cell) or 0.0) < self.deadline - time.monotonic()

    def _take(self, cell: Cell, outcome: Outcome[Report]) -> None:
        """Say and record what came of a cell."""
        report = outcome.value or Report()
        if isinstance(outcome.error, StoppedError):  # its state is saved
            return
        if isinstance(outcome.error, FolderLockedError):
            self.busy.append(cell)
            return
        if report.absent is not None:
            self.failed += 1
            if cell.row.dataset not in self.absent:
                self.absent.add(cell.row.dataset)
                self.say(report.absent)
            return
        if outcome.error is not None:
            self._note(cell, outcome.error)
        for line in report.said:
            self.say(line)
        self.failed += report.failed or outcome.error is not None
        record_cells([cell], self.grid.work, self.grid.results)

    def _note(self, cell: Cell, error: Exception) -> None:
        """Write down a failure where the run has not done so."""
        if self.grid.failure(cell) is None:
            text = f"{type(error).__name__}: {error}"
            write_json(cell.folder(self.grid.work) / FAILURE, {"error": text})
        self.say(f"{cell.row.name} split {cell.split} failed: {error}")


def _line(cell: Cell, result: Result) -> str:
    test = "" if result.test is None else f"test {result.test:.2f}, "
    return (
        f"{cell.row.name} split {cell.split}: {test}validation {result.validation:.2f} at epoch "
        f"{result.best_epoch} of {result.epochs}, {result.seconds_per_epoch:.2f} s an epoch"
    )
