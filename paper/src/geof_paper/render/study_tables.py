"""Tables of studies, with what a reader must know of them, from the runs that are recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from geof.io import write_json
from geof_paper.grid.cells import Benchmark, Cell, Row
from geof_paper.grid.declared import Study, Variant
from geof_paper.grid.grid import Grid
from geof_paper.grid.records import Record, RecordedRun, failed_splits, recorded
from geof_paper.render.tables import Cell as TableCell
from geof_paper.render.tables import Table, write_table
from geof_paper.studies.compared import ADAPTED
from geof_paper.studies.printed import Printed
from geof_paper.studies.statistics import mean_and_deviation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw: TypeAlias = Callable[[], "Figure | None"]
"""Draws a figure; ``None`` if what it needs is not here."""

FIGURE = "figure.svg"


@dataclass(frozen=True)
class StudyTable:
    """What ``geof reproduce`` writes into one folder.

    Attributes:
        name: Of the folder.
        title: For people.
        table: The numbers.
        text: What a reader must know of them.
        draw: Draws the same as a figure, if there is one.
        missing: What was asked for and is not there, with its cost.
        command: What makes it.
        versions: Of what ran.
        machine: On what it ran.
    """

    name: str
    title: str
    table: Table
    text: str = ""
    draw: Draw | None = None
    missing: tuple[str, ...] = ()
    command: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def write(self, out: Path, *, figures: bool = True) -> list[str]:
        """Write table, figure and ``study.json`` below ``out``; return what is to be said of it."""
        from geof_paper.render.figure_style import save

        folder = out / self.name
        folder.mkdir(parents=True, exist_ok=True)
        write_table(self.table, folder)
        said = [f"{self.title}: {folder}", self.table.markdown()]
        said += [self.text] if self.text else []
        if figures and self.draw is not None:
            figure = self.draw()
            if figure is not None:
                save(figure, folder)
            else:
                said.append("The figure needs run folders that are not here.")
        about = {
            "name": self.name,
            "title": self.title,
            "text": self.text,
            "command": self.command,
            "missing": list(self.missing),
            "versions": dict(self.versions),
            "machine": dict(self.machine),
        }
        write_json(folder / "study.json", about)
        return said


@dataclass(frozen=True)
class StudyRuns:
    """The recorded runs of a study, or of the part of it that a user wants.

    Attributes:
        study: Which.
        variants: Its rows.
        benchmarks: Its columns.
        preset: GeoF's, where a variant names none.
        splits: Of the ten.
        grid: Its cells and where their results are.
        data_root: Where raw files are.
    """

    study: Study
    variants: tuple[Variant, ...]
    benchmarks: tuple[Benchmark, ...]
    preset: str
    splits: tuple[str, ...]
    grid: Grid
    data_root: Path | None = None
    _rows: dict[tuple[Variant, Benchmark], Row] = field(default_factory=dict, compare=False)
    _records: dict[Row, Record | None] = field(default_factory=dict, compare=False)

    def row(self, variant: Variant, benchmark: Benchmark) -> Row:
        """Return the row of a variant on a benchmark."""
        if (variant, benchmark) not in self._rows:
            self._rows[variant, benchmark] = self.study.row(variant, benchmark, self.preset)
        return self._rows[variant, benchmark]

    def record(self, variant: Variant, benchmark: Benchmark) -> Record | None:
        """Return what is recorded of a variant on a benchmark."""
        row = self.row(variant, benchmark)
        if row not in self._records:
            self._records[row] = recorded(row, self.grid.results)
        return self._records[row]

    def runs(self, variant: Variant, benchmark: Benchmark) -> list[RecordedRun]:
        """Return the recorded runs of a variant on a benchmark, of the splits wanted."""
        record = self.record(variant, benchmark)
        return [] if record is None else [run for run in record.runs if run.split in self.splits]

    def scores(self, variant: Variant, benchmark: Benchmark) -> dict[str, float]:
        """Return the test score of every split that is there."""
        runs = self.runs(variant, benchmark)
        return {run.split: run.test for run in runs if run.test is not None}

    def measures(self, variant: Variant, benchmark: Benchmark) -> list[dict[str, Any]]:
        """Return what was measured, one per split that is there."""
        found = [run.measures.get(str(self.study.measure)) for run in self.runs(variant, benchmark)]
        return [measure for measure in found if measure is not None]

    def cell(self, variant: Variant, benchmark: Benchmark) -> TableCell:
        """Return the cell of a variant on a benchmark, with the paper's number."""
        scores = list(self.scores(variant, benchmark).values())
        is_adapted = bool(scores) and self.row(variant, benchmark).preset == ADAPTED
        notes = [ADAPTED] if is_adapted else []
        notes += [self._failures(variant, benchmark), self._stale(variant, benchmark)]
        note = "; ".join(part for part in notes if part)
        return cell_of(scores, len(self.splits), self.study.printed(variant, benchmark), note)

    def _failures(self, variant: Variant, benchmark: Benchmark) -> str:
        row = self.row(variant, benchmark)
        failed = [s for s in self.splits if self.grid.failure(Cell(row, s)) is not None]
        failed = failed or failed_splits(row, self.grid.results)  # on another machine, perhaps
        return f"failed: split {', '.join(failed)}" if failed else ""

    def _stale(self, variant: Variant, benchmark: Benchmark) -> str:
        record = self.record(variant, benchmark)
        stale = [] if record is None else [s for s in record.stale if s in self.splits]
        return f"stale: split {', '.join(stale)}" if stale else ""

    def missing(self) -> tuple[str, ...]:
        """Return what is not there, with its cost; stale runs are there."""
        lacking = []
        for entry in self.grid.missing():
            record = recorded(entry.row, self.grid.results)
            have = set() if record is None else {run.split for run in record.runs}
            if set(entry.splits) - have:
                lacking.append(str(entry.without(have)))
        return tuple(lacking)

    def origin(self) -> dict[str, Mapping[str, Any]]:
        """Return versions and machine of the runs, those of the last record where they differ."""
        known = [record for record in self._all_records() if record is not None]
        if not known:
            return {}
        return {"versions": known[-1].versions, "machine": known[-1].machine}

    def staleness(self) -> str:
        """Return a sentence on the runs that are stale, if any are."""
        known = [record for record in self._all_records() if record is not None]
        runs = [(r, run.split) for r in known for run in r.runs if run.split in self.splits]
        reasons = Counter(r.stale[split] for r, split in runs if split in r.stale)
        if not reasons:
            return ""
        told = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        return (
            f"{sum(reasons.values())} of {len(runs)} runs are stale and are run again by the "
            f"command: {told}."
        )

    def _all_records(self) -> list[Record | None]:
        return [self.record(v, b) for v in self.variants for b in self.benchmarks]


def cell_of(
    scores: Sequence[float], of: int, paper: Printed | None = None, note: str = ""
) -> TableCell:
    """Return the mean and deviation of scores beside the paper's."""
    expected, spread = (None, None) if paper is None else (paper.mean, paper.deviation)
    if not scores:
        return TableCell(None, None, 0, of, expected, spread, note)
    mean, deviation, count = mean_and_deviation(scores)
    return TableCell(mean, deviation, count, of, expected, spread, note)
