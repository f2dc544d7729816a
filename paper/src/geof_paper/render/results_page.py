"""Recorded results and reproduced studies, collected into plain values for one page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from geof.errors import ConfigError, DataError
from geof.io import read_json
from geof.machine import machine
from geof.methods.interface import TaskKind
from geof.version import __version__
from geof_paper.grid.cells import BENCHMARKS, Row, config_of
from geof_paper.grid.records import (
    ALL_SPLITS,
    FailedRun,
    Record,
    RecordedRun,
    read_failures,
    read_records,
)
from geof_paper.render.results_markdown import HEADINGS
from geof_paper.render.study_tables import FIGURE
from geof_paper.render.tables import FIELDS, MARK_MEANING, Cell
from geof_paper.studies.compared import COMPARED, Compared
from geof_paper.studies.printed import Printed, printed

_STUDY = ("table.json", "study.json")


def page_and_script(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the page of a folder of results and the script that draws it, for ``geof report``."""
    script = resources.files("geof_paper.render") / "assets" / "results.js"
    return results_page(folder), script.read_text(encoding="utf-8")


def results_page(folder: Path) -> dict[str, Any]:
    """Collect the recorded runs of a folder and the studies in its subfolders.

    Args:
        folder: With results files ``TASK.jsonl``, or with folders of studies, or one study itself.

    Raises:
        DataError: If there is neither, or a file is damaged.
    """
    studies = [_study(path) for path in _study_folders(folder)]
    records = read_records(folder)
    if not records and not studies:
        raise DataError(
            f"Expected '{folder}' to be a run folder (with config.json), a folder of results files "
            "(node.jsonl and others, as 'geof results run' writes them) or one of studies "
            "(NAME/table.json, as 'geof reproduce' writes them). Check the path."
        )
    failures: dict[Row, list[FailedRun]] = {}
    for run in read_failures(folder):
        failures.setdefault(run.row, []).append(run)
    return {
        "kind": "results",
        "title": f"Results in {folder.resolve().name}/",
        "made": {"geof": __version__, **machine()},
        "rule": f"≠ marks what {MARK_MEANING}; a single split has none and is not marked.",
        "tables": _tables(records),
        "rows": [_row(record, failures.get(record.row, [])) for record in records],
        "studies": studies,
    }


def _tables(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a table per task: a row per method, a column per dataset."""
    plain = {r.row: r for r in records if not r.row.changes and r.test is not None}
    tables = []
    for task, heading in HEADINGS.items():
        benchmarks = [b for b in BENCHMARKS if b[0] == task]
        benchmarks = [b for b in benchmarks if any(row.benchmark == b for row in plain)]
        rows = []
        for compared in COMPARED:
            preset = compared.preset_for(task)
            found = [plain.get(Row(*b, compared.method, preset)) for b in benchmarks]
            if any(found):
                paper = [printed(*b, compared.printed) for b in benchmarks]
                cells = [_cell(*pair).as_json() for pair in zip(found, paper, strict=True)]
                rows.append({"label": _title(compared, task), "cells": cells})
        if rows:
            columns = [dataset for _, dataset in benchmarks]
            tables.append({"task": task, "title": heading, "columns": columns, "rows": rows})
    return tables


def _cell(record: Record | None, paper: Printed | None) -> Cell:
    test = None if record is None else record.test
    stale = len(record.stale) if record is not None else 0
    return Cell(
        mean=None if test is None else test.mean,
        deviation=None if test is None else test.deviation,
        count=0 if test is None else test.number,
        of=len(ALL_SPLITS),
        paper=None if paper is None else paper.mean,
        paper_deviation=None if paper is None else paper.deviation,
        note=f"{stale} stale" if stale else "",
    )


def _title(compared: Compared, task: TaskKind) -> str:
    return compared.title_for(task).replace("`", "")


def _row(record: Record, failures: Sequence[FailedRun]) -> dict[str, Any]:
    """Return a record as a line of the long table, with all its details."""
    row = record.row
    own = (row.method, row.preset)
    compared = next((c for c in COMPARED if (c.method, c.preset_for(row.task)) == own), None)
    paper = None
    if compared is not None and not row.changes:
        paper = printed(row.task, row.dataset, compared.printed)
    return {
        "task": row.task,
        "dataset": row.dataset,
        "method": row.method if compared is None else compared.title.replace("`", ""),
        "preset": row.preset,
        "changes": " ".join(row.changes),
        "metric": record.first.metric,
        **_cell(record, paper).as_json(),
        "count": len(record.runs),
        "validation": record.validation.mean,
        "seconds": sum(run.seconds_per_epoch for run in record.runs) / len(record.runs),
        "details": {
            "command": record.command,
            "selection": record.first.selection,
            "parameters": record.first.parameters,
            "versions": record.versions,
            "machine": record.machine,
            "notes": record.first.notes,
            "failures": [{"split": run.split, **run.failure} for run in failures],
            "splits": [
                {**_details_of(run), "stale": record.stale.get(run.split)} for run in record.runs
            ],
            "options": _options(record),
        },
    }


def _options(record: Record) -> Mapping[str, Any]:
    """Return all options in force; those that differ from the defaults where nobody knows these."""
    row, options = record.row, record.first.options
    try:
        return config_of(row.method, row.task, row.dataset, options).tree()
    except ConfigError:
        return options


def _details_of(run: RecordedRun) -> dict[str, Any]:
    shown = ("split", "split_hash", "seed", "validation", "test", "best_epoch", "epochs")
    return {name: getattr(run, name) for name in (*shown, "revision")}


def _study_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return [path for path in candidates if any((path / name).is_file() for name in _STUDY)]


def _study(folder: Path) -> dict[str, Any]:
    """Read a study; what it lacks is said instead of shown."""
    path = folder / "study.json"
    about = read_json(path, "what 'geof reproduce' writes") if path.is_file() else {}
    missing = [str(entry) for entry in about.get("missing") or ()]
    table = None
    if (folder / "table.json").is_file():
        table = _checked_table(folder / "table.json")
    else:
        missing.append("The table: there is no table.json.")
    if not about:
        missing.append("How it was made: there is no study.json.")
    figure = folder / FIGURE
    return {
        "name": str(about.get("name") or folder.name),
        "title": str(about.get("title") or (table or {}).get("title") or folder.name),
        "text": str(about.get("text") or ""),
        "command": str(about.get("command") or ""),
        "versions": about.get("versions") or {},
        "machine": about.get("machine") or {},
        "missing": missing,
        "table": table,
        "figure": _as_image(figure) if figure.is_file() else None,
    }


def _checked_table(path: Path) -> dict[str, Any]:
    """Return a table in the one form the page knows.

    Raises:
        DataError: If it has another form.
    """
    table = read_json(path, "a table")
    try:
        columns = [str(name) for name in table["columns"]]
        rows = [
            {
                "label": str(row["label"]),
                "cells": [{name: cell.get(name) for name in FIELDS} for cell in row["cells"]],
            }
            for row in table["rows"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"Expected '{path}' to be a table with 'columns' and 'rows' of labelled cells "
            f"({type(error).__name__}: {error}). Make the study again."
        ) from error
    for row in rows:
        if len(row["cells"]) != len(columns):
            raise DataError(
                f"Expected {len(columns)} cells in every row of '{path}' (got "
                f"{len(row['cells'])} for {row['label']!r}). Make the study again."
            )
    told = {name: str(table.get(name) or "") for name in ("title", "caption")}
    return {**told, "columns": columns, "rows": rows}


def _as_image(path: Path) -> str:
    # As an image, nothing in the file can run, whatever it holds.
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
