"""Time and memory beside the paper's, from the rows of ``geof bench``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from geof.errors import DataError
from geof.io import read_json
from geof_paper.render.study_tables import StudyTable
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


def efficiency(bench: Path) -> list[StudyTable]:
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
        _gigabytes,
    )
    about: dict[str, Any] = {
        "command": f"geof reproduce efficiency --bench {bench}",
        "machine": rows[0]["machine"],
        "missing": _missing(rows),
    }
    text = (
        f"From '{bench}', which 'geof bench --methods paper --json' wrote. The paper's numbers "
        f"were measured on an A100 graphics card, ours on {_place(rows[0])}: compare ratios "
        "between methods, not the numbers. An epoch of ogbg-molhiv is a fixed part of it, and the "
        "time is scaled to all its graphs."
    )
    return [
        StudyTable("efficiency-time", time.title, time, text=text, **about),
        StudyTable("efficiency-memory", memory.title, memory, text=text, **about),
    ]


def _gigabytes(row: dict[str, Any]) -> float | None:
    """Return the peak in the memory that was computed in: a device's own, or the process's."""
    on_cpu = row.get("device", "cpu") == "cpu"  # files of earlier versions have no such key
    peak = row["peak_rss_bytes" if on_cpu else "peak_device_bytes"]
    return None if peak is None else peak / 1e9


def _place(row: dict[str, Any]) -> str:
    device = row.get("device", "cpu")
    return "a processor" if device == "cpu" else row["machine"]["device_model"] or device


def _table(
    title: str,
    rows: Sequence[dict[str, Any]],
    paper: Any,
    value: Callable[[dict[str, Any]], float | None],
) -> Table:
    return Table(
        title,
        DATASETS,
        tuple(
            Row(
                name,
                tuple(
                    _cell(_row(rows, method, dataset), paper[name][dataset], value)
                    for dataset in DATASETS
                ),
            )
            for name, method in METHODS.items()
        ),
        decimals=3,
        better="smaller",
    )


def _cell(
    row: dict[str, Any] | None, paper: float, value: Callable[[dict[str, Any]], float | None]
) -> Cell:
    if row is None:
        return Cell(None, paper=paper)
    note = "" if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
    return Cell(value(row), paper=paper, note=note)


def _seconds_of_all_graphs(row: dict[str, Any]) -> float | None:
    seconds: float | None = row["seconds_per_epoch"]
    return None if seconds is None else seconds * row["graphs"] / row["graphs_per_epoch"]


def _row(rows: Sequence[dict[str, Any]], method: str, dataset: str) -> dict[str, Any] | None:
    """Return a method's row, the fastest where it has several backends."""
    found = [row for row in rows if row["method"] == method and row["dataset"] == dataset]
    return min(found, key=lambda row: row["seconds_per_epoch"] or float("inf"), default=None)


def _missing(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(
        f"{name} on {dataset}"
        for name, method in METHODS.items()
        for dataset in DATASETS
        if _row(rows, method, dataset) is None
    )


def _read(path: Path) -> list[dict[str, Any]]:
    command = f"Run: geof bench --methods paper --json {path}"
    try:
        read = read_json(path, "what 'geof bench --json' writes", list)
    except DataError as error:
        raise DataError(f"{error} {command}") from error
    rows = [{"method": row.get("model"), **row} for row in read]  # as it was called before
    wanted = {"dataset", "status", "seconds_per_epoch"}
    if not rows or any(wanted - row.keys() or row["method"] is None for row in rows):
        raise DataError(
            f"Expected rows with method, {', '.join(sorted(wanted))} in '{path}'. {command}"
        )
    return rows
