"""Time and memory beside the paper's, from the rows of ``geof bench``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geof.errors import DataError
from geof_paper.render.exhibits import Exhibit
from geof_paper.render.tables import Cell, Row, Table
from geof_paper.studies.printed import paper_tables

DATASETS = ("PubMed", "CS", "Computers", "NCI1", "Mutagenicity", "ogbg-molhiv")
METHODS = {
    "GCN": "gcn",
    "AMPs": "amp",
    "G2Former": "g2former",
    "SPDGNN": "spdgnn",
    "ARGNN": "argnn",
    "GeoF": "geof",
}
"""The paper's names of what it measures, and ``geof bench``'s."""


def efficiency(bench: Path) -> list[Exhibit]:
    """Return the tables of time and of memory.

    Args:
        bench: A file ``geof bench --json`` wrote.

    Raises:
        DataError: If it is not there or has another form.
    """
    rows = _read(bench)
    tables = paper_tables()
    time = _table(
        "Seconds per training epoch",
        rows,
        tables["seconds_per_epoch_A100"],
        _seconds_of_all_graphs,
    )
    memory = _table(
        "Peak memory of training in GB",
        rows,
        tables["gpu_memory_GB"],
        lambda row: None if row["peak_rss_bytes"] is None else row["peak_rss_bytes"] / 1e9,
    )
    about: dict[str, Any] = {
        "command": f"geof reproduce efficiency --bench {bench}",
        "machine": rows[0]["machine"],
        "missing": _missing(rows),
    }
    text = (
        f"From '{bench}', which 'geof bench --models paper --json' wrote. The paper's numbers were "
        "measured on an A100 graphics card, ours on a processor: compare ratios between methods, "
        "not the numbers. An epoch of ogbg-molhiv is a fixed part of it, and the time is scaled to "
        "all its graphs."
    )
    return [
        Exhibit("efficiency-time", time.title, time, text=text, **about),
        Exhibit("efficiency-memory", memory.title, memory, text=text, **about),
    ]


def _table(title: str, rows: Sequence[dict[str, Any]], paper: Any, value: Any) -> Table:
    lines = []
    for name, model in METHODS.items():
        cells = []
        for dataset in DATASETS:
            row = _row(rows, model, dataset)
            ours = None if row is None else value(row)
            failed = row is not None and row["status"] != "ok"
            note = f"{row['status']}: {row['reason']}" if row is not None and failed else ""
            cells.append(Cell(ours, paper=paper[name][dataset], note=note))
        lines.append(Row(name, tuple(cells)))
    return Table(title, DATASETS, tuple(lines), decimals=3, better="smaller")


def _seconds_of_all_graphs(row: dict[str, Any]) -> float | None:
    seconds: float | None = row["seconds_per_epoch"]
    return None if seconds is None else seconds * row["graphs"] / row["graphs_per_epoch"]


def _row(rows: Sequence[dict[str, Any]], model: str, dataset: str) -> dict[str, Any] | None:
    """Return a model's row, the fastest where it has several backends."""
    found = [row for row in rows if row["model"] == model and row["dataset"] == dataset]
    return min(found, key=lambda row: row["seconds_per_epoch"] or float("inf"), default=None)


def _missing(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(
        f"{name} on {dataset}"
        for name, model in METHODS.items()
        for dataset in DATASETS
        if _row(rows, model, dataset) is None
    )


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        for row in rows:
            row["model"], row["dataset"], row["status"], row["seconds_per_epoch"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"Expected '{path}' to be what 'geof bench --json' writes ({error}). Run: geof bench "
            f"--models paper --json {path}"
        ) from error
    if not rows:
        raise DataError(f"Expected rows in '{path}' (got none).")
    return rows
