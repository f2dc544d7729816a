"""A grid of cells: what is done, what is missing and what that would cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from geof.data.records import GraphSet, NodeGraph
from geof.io import read_json, write_json
from geof.training.predict import Run
from geof.training.run_folder import read_result
from geof_paper.grid.cells import Cell, Row
from geof_paper.grid.records import (
    ALL_SPLITS,
    FAILURE,
    MEASURED,
    expected_seconds,
    record_cells,
    recorded_run,
)
from geof_paper.studies.measures import MEASURES


@dataclass(frozen=True)
class Missing:
    """Cells of a row that are not finished.

    Attributes:
        row: Which row.
        splits: Which of its splits.
        seconds: What one of them is expected to take; ``None`` if no split was ever run.
        failed: Those that were run and failed, and why.
    """

    row: Row
    splits: tuple[str, ...]
    seconds: float | None
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def cost(self) -> str:
        """What all of them are expected to take, for people."""
        return "unknown" if self.seconds is None else _duration(self.seconds * len(self.splits))

    def without(self, splits: Collection[str]) -> Missing:
        """Return the same without some splits."""
        return replace(self, splits=tuple(s for s in self.splits if s not in splits))

    def __str__(self) -> str:
        splits = ", ".join(self.splits)
        cost = "" if self.seconds is None else f", about {self.cost}"
        failed = "".join(f"; split {split} failed: {why}" for split, why in self.failed)
        return f"{self.row.name}: splits {splits}{cost}{failed}"


@dataclass(frozen=True)
class Grid:
    """Cells and the folders they live in.

    Attributes:
        cells: In the order they are run.
        work: Where run folders are.
        results: Where results files are.
        measure: What is measured on every trained network, a key of
            :data:`~geof_paper.studies.measures.MEASURES`; ``None`` for nothing.
    """

    cells: tuple[Cell, ...]
    work: Path
    results: Path
    measure: str | None = None

    @property
    def rows(self) -> list[Row]:
        """The rows, each once."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def is_done(self, cell: Cell, data: NodeGraph | GraphSet | None = None) -> bool:
        """Return whether a run of the cell is recorded and valid, its measure included.

        Then nothing is run, even where there is no run folder of it.

        Args:
            cell: Which row on which split.
            data: The benchmark, if it has been read: runs made on other data do not count.
        """
        run = recorded_run(cell, self.results, None if data is None else data.content_hash)
        return run is not None and (self.measure is None or self.measure in run.measures)

    def is_finished(self, cell: Cell) -> bool:
        """Return whether a cell has a result, in its folder or in a results file."""
        return self._result(cell) is not None or self.is_done(cell)

    def measure_cell(self, cell: Cell, data: NodeGraph | GraphSet) -> None:
        """Measure a trained cell unless that is done."""
        if self.measure is not None and self._needs_measure(cell):
            found = MEASURES[self.measure](Run.open(cell.folder(self.work)), data)
            write_json(self._measured(cell), found)

    def unmeasured(self) -> list[Cell]:
        """Return the trained cells that still have to be measured."""
        return [cell for cell in self.cells if self._needs_measure(cell)]

    def record(self) -> None:
        """Record all runs of the grid's rows that have a folder here."""
        cells = [Cell(row, split) for row in self.rows for split in ALL_SPLITS]
        record_cells(cells, self.work, self.results)

    def seconds(self, cell: Cell) -> float | None:
        """Return what a cell is expected to take, from the row's other splits."""
        return expected_seconds(cell.row, self.results)

    def missing(self) -> list[Missing]:
        """Return what is not finished, row by row."""
        open_cells: dict[Row, list[Cell]] = {row: [] for row in self.rows}
        for cell in self.cells:
            if not self.is_finished(cell):
                open_cells[cell.row].append(cell)
        return [
            Missing(
                row,
                tuple(cell.split for cell in cells),
                expected_seconds(row, self.results),
                tuple((c.split, why) for c in cells if (why := self.failure(c)) is not None),
            )
            for row, cells in open_cells.items()
            if cells
        ]

    def failure(self, cell: Cell) -> str | None:
        """Return why a cell failed, ``None`` if it did not."""
        path = cell.folder(self.work) / FAILURE
        return str(read_json(path, "what a run failed of")["error"]) if path.is_file() else None

    def _result(self, cell: Cell) -> dict[str, Any] | None:
        folder = cell.folder(self.work)
        return read_result(folder) if folder.is_dir() else None

    def _measured(self, cell: Cell) -> Path:
        return cell.folder(self.work) / MEASURED / f"{self.measure}.json"

    def _needs_measure(self, cell: Cell) -> bool:
        """Return whether a cell is trained here and not measured yet."""
        wanted = self.measure is not None and self._result(cell) is not None
        return wanted and not self._measured(cell).exists()


def order(rows: Sequence[Row], splits: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells split by split, so that a grid cut short has every row on the same ones."""
    return tuple(Cell(row, split) for split in splits for row in rows)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
