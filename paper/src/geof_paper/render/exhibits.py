"""An exhibit: a table with what a reader must know of it, and a figure where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.io import write_json
from geof_paper.grid.grid import Grid
from geof_paper.grid.provenance import code_digest
from geof_paper.grid.records import Record, recorded
from geof_paper.render.tables import Cell, Table, write_table
from geof_paper.studies.declared import Line, Setting, Study
from geof_paper.studies.printed import Printed
from geof_paper.studies.statistics import mean_and_deviation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Exhibit:
    """What ``geof reproduce`` writes into one folder.

    Attributes:
        name: Of the folder.
        title: For people.
        table: The numbers.
        text: What a reader must know of them.
        figure: The same as a picture, if there is one.
        missing: What was asked for and is not there, with its cost.
        command: What makes it.
        versions: Of what ran.
        machine: On what it ran.
    """

    name: str
    title: str
    table: Table
    text: str = ""
    figure: Figure | None = None
    missing: tuple[str, ...] = ()
    command: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def write(self, out: Path) -> Path:
        """Write table, figure and ``study.json`` below ``out``; return the folder."""
        from geof_paper.render.figure_style import save

        folder = out / self.name
        folder.mkdir(parents=True, exist_ok=True)
        write_table(self.table, folder)
        if self.figure is not None:
            save(self.figure, folder)
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
        return folder


@dataclass(frozen=True)
class Request:
    """A study as the user wants it.

    Attributes:
        study: Which.
        lines: Of its lines.
        settings: Its columns.
        preset: GeoF's, where a line names none.
        splits: Of the ten.
        grid: Its cells and where their results are.
        data_root: Where raw files are.
    """

    study: Study
    lines: tuple[Line, ...]
    settings: tuple[Setting, ...]
    preset: str
    splits: tuple[str, ...]
    grid: Grid
    data_root: Path | None = None
    _records: dict[tuple[Line, Setting], Record | None] = field(default_factory=dict, compare=False)

    def record(self, line: Line, setting: Setting) -> Record | None:
        """Return what is recorded of a line on a setting."""
        if (line, setting) not in self._records:
            row = self.study.row(line, setting, self.preset)
            self._records[line, setting] = recorded(row, self.grid.results)
        return self._records[line, setting]

    def entries(self, line: Line, setting: Setting) -> list[dict[str, Any]]:
        """Return the recorded splits of a line on a setting, of those wanted."""
        record = self.record(line, setting)
        splits = [] if record is None else record.splits
        return [entry for entry in splits if entry["split"] in self.splits]

    def scores(self, line: Line, setting: Setting) -> dict[str, float]:
        """Return the test score of every split that is there."""
        return {entry["split"]: entry["test"] for entry in self.entries(line, setting)}

    def measures(self, line: Line, setting: Setting) -> list[dict[str, Any]]:
        """Return what was measured, one per split that is there."""
        name = self.study.measure
        found = (entry.get("measures", {}).get(name) for entry in self.entries(line, setting))
        return [measure for measure in found if measure is not None]

    def cell(self, line: Line, setting: Setting) -> Cell:
        """Return the cell of a line on a setting, with the paper's number."""
        scores = list(self.scores(line, setting).values())
        note = self._failures(line, setting)
        return cell_of(scores, len(self.splits), self.study.printed(line, setting), note)

    def _failures(self, line: Line, setting: Setting) -> str:
        row = self.study.row(line, setting, self.preset)
        cells = [cell for cell in self.grid.cells if cell.row == row]
        failed = [cell.split for cell in cells if self.grid.failure(cell) is not None]
        if not failed:  # on another machine, perhaps
            record = self.record(line, setting)
            failed = [] if record is None else [str(f["split"]) for f in record.failures]
        return f"failed: split {', '.join(failed)}" if failed else ""

    def missing(self) -> tuple[str, ...]:
        """Return what is not there, with its cost, however it was made."""
        lacking = []
        for entry in self.grid.missing():
            record = recorded(entry.row, self.grid.results)
            have = set() if record is None else {e["split"] for e in record.splits}
            if set(entry.splits) - have:
                lacking.append(str(entry.without(have)))
        return tuple(lacking)

    def origin(self) -> dict[str, Mapping[str, Any]]:
        """Return versions and machine of the runs, those of the last record where they differ."""
        known = [r for r in self._all_records() if r is not None]
        if not known:
            return {}
        return {"versions": known[-1].versions, "machine": known[-1].machine}

    def _all_records(self) -> list[Record | None]:
        return [self.record(line, setting) for line in self.lines for setting in self.settings]

    def provenance(self) -> str:
        """Return a sentence on splits that other code than the present one made."""
        found = [
            (entry, code_digest(line.encoder))
            for line in self.lines
            for setting in self.settings
            for entry in self.entries(line, setting)
        ]
        other = sum(entry.get("code") != code for entry, code in found)
        if not other:
            return ""
        return (
            f"{other} of {len(found)} runs were made by earlier code of the same version and are "
            "run again by the command."
        )


def cell_of(scores: Sequence[float], of: int, paper: Printed | None = None, note: str = "") -> Cell:
    """Return the mean and deviation of scores beside the paper's."""
    expected, spread = (None, None) if paper is None else (paper.mean, paper.deviation)
    if not scores:
        return Cell(None, None, 0, of, expected, spread, note)
    mean, deviation, count = mean_and_deviation(scores)
    return Cell(mean, deviation, count, of, expected, spread, note)
