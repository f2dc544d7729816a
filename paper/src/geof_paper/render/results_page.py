"""Recorded results and reproduced studies, collected into plain values for one page."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from geof.errors import DataError
from geof.machine import machine
from geof.version import __version__
from geof_paper.grid.cells import SETTINGS
from geof_paper.grid.records import ALL_SPLITS, Record, read_records
from geof_paper.render.results_markdown import HEADINGS
from geof_paper.render.tables import FIELDS, MARK_MEANING, Cell
from geof_paper.studies.compared import COMPARED
from geof_paper.studies.printed import Printed, printed

_STUDY = ("table.json", "study.json")


def page_and_script(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the page of a folder of results and the script that draws it, for ``geof report``."""
    script = resources.files("geof_paper.render") / "assets" / "results.js"
    return results_page(folder), script.read_text(encoding="utf-8")


def results_page(folder: Path) -> dict[str, Any]:
    """Collect the records of a folder and the studies in its subfolders.

    Args:
        folder: With results files ``*.json``, or with folders of studies, or one study itself.

    Raises:
        DataError: If there is neither, or a file is damaged.
    """
    studies = [_study(path) for path in _study_folders(folder)]
    records = _records(folder, bool(studies))
    if not records and not studies:
        raise DataError(
            f"Expected '{folder}' to be a run folder (with config.json), a folder of results files "
            "(*.json, as 'geof results run' writes them) or one of studies (NAME/table.json, as "
            "'geof reproduce' writes them). Check the path."
        )
    return {
        "kind": "results",
        "title": f"Results in {folder.resolve().name}/",
        "made": {"geof": __version__, **machine()},
        "rule": f"≠ marks what {MARK_MEANING}; a single split has none and is not marked.",
        "tables": _tables(records),
        "rows": [_row(record) for record in records],
        "studies": studies,
    }


def _records(folder: Path, beside_studies: bool) -> list[Record]:
    if not beside_studies:
        return read_records(folder)
    # A folder of studies may hold other JSON too; only what says it is a row is read as one.
    named = [path for path in folder.glob("*.json") if path.name not in _STUDY]
    if not any("row" in _json(path) and "summary" in _json(path) for path in named):
        return []
    return read_records(folder)


def _tables(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a table per task: a row per method, a column per dataset."""
    plain = {
        (r.row["task"], r.row["dataset"], r.row["encoder"], r.row["preset"]): r
        for r in records
        if not r.row["changes"] and "test_mean" in r.summary
    }
    tables = []
    for task, heading in HEADINGS.items():
        datasets = [dataset for kind, dataset in SETTINGS if kind == task]
        datasets = [d for d in datasets if any(key[:2] == (task, d) for key in plain)]
        rows = []
        for method in COMPARED:
            found = [plain.get((task, d, method.encoder, method.preset)) for d in datasets]
            if any(found):
                paper = [printed(task, d, method.printed) for d in datasets]
                cells = [_cell(*pair) for pair in zip(found, paper, strict=True)]
                rows.append({"label": method.title.replace("`", ""), "cells": cells})
        if rows:
            tables.append({"task": task, "title": heading, "columns": datasets, "rows": rows})
    return tables


def _cell(record: Record | None, paper: Printed | None) -> dict[str, Any]:
    summary = {"splits": 0} if record is None else record.summary
    count = summary["splits"]
    return Cell(
        mean=summary.get("test_mean"),
        deviation=summary.get("test_deviation") if count > 1 else None,
        count=count,
        of=len(ALL_SPLITS),
        paper=None if paper is None else paper.mean,
        paper_deviation=None if paper is None else paper.deviation,
    ).as_json()


def _row(record: Record) -> dict[str, Any]:
    """Return a record as a line of the long table, with all its details."""
    row = record.row
    names = {(m.encoder, m.preset): m for m in COMPARED}
    method = names.get((row["encoder"], row["preset"]))
    paper = None
    if method is not None and not row["changes"]:
        paper = printed(row["task"], row["dataset"], method.printed)
    readable = record if "test_mean" in record.summary else None
    splits = record.splits
    return {
        "task": row["task"],
        "dataset": row["dataset"],
        "method": row["encoder"] if method is None else method.title.replace("`", ""),
        "preset": row["preset"],
        "changes": " ".join(row["changes"]),
        "metric": record.metric,
        **_cell(readable, paper),
        "count": record.summary["splits"],
        "validation": record.summary.get("validation_mean"),
        "seconds": _mean([s.get("seconds_per_epoch") for s in splits]),
        "details": {
            "command": record.command,
            "selection": record.selection,
            "parameters": record.parameters,
            "versions": record.versions,
            "machine": record.machine,
            "notes": record.notes,
            "failures": record.failures,
            "splits": splits,
            "settings": record.settings,
        },
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _study_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return [path for path in candidates if any((path / name).is_file() for name in _STUDY)]


def _study(folder: Path) -> dict[str, Any]:
    """Read a study; what it lacks is said instead of shown."""
    about = _json(folder / "study.json") if (folder / "study.json").is_file() else {}
    missing = [str(entry) for entry in about.get("missing") or ()]
    table = None
    if (folder / "table.json").is_file():
        table = _checked_table(folder / "table.json")
    else:
        missing.append("The table: there is no table.json.")
    if not about:
        missing.append("How it was made: there is no study.json.")
    figure = folder / "figure.svg"
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
    table = _json(path)
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


def _json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"Expected '{path}' to be a JSON file ({error}).") from error
    if not isinstance(content, dict):
        raise DataError(f"Expected '{path}' to hold an object (got {type(content).__name__}).")
    return content
