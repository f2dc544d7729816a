"""Recorded results: one small JSON file per row, made from run folders that finished."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from geof.errors import DataError
from geof.io import write_json
from geof.machine import machine, noted_machine
from geof.training.run_folder import read_config, read_result
from geof_paper.grid.cells import Cell, Row, as_plain, without_nones
from geof_paper.grid.provenance import code_digest


@dataclass(frozen=True)
class Record:
    """What a results file holds.

    Attributes:
        row: Task, dataset, encoder, preset and changes.
        metric: Which metric the numbers are, in percent.
        splits: One entry per finished split: number, hash, seed, validation, test (``None`` where
            settings were tried out, which does not read it), chosen epoch, time, memory, every test
            metric, the digest of the code that made it, and what was measured on the trained model.
        summary: Mean and deviation over the splits.
        settings: The effective settings, apart from the seed, which is the split's number.
        command: What makes this row.
        selection: How the epoch was chosen.
        versions: Of what ran.
        machine: On what it ran.
        parameters: Number of trained parameters.
        notes: What a reader must know about the data.
        failures: Splits that did not finish, and why.
    """

    row: dict[str, Any]
    metric: str
    splits: list[dict[str, Any]]
    summary: dict[str, Any]
    settings: dict[str, Any]
    command: str
    selection: str
    versions: dict[str, str]
    machine: dict[str, Any]
    parameters: int
    notes: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)


STUDIES = "studies"
"""The folder, among results files, of the lines of studies."""

MEASURED = "measures"
"""The folder, in a run's, of what was measured on its model."""

MACHINE = "machine.json"

ALL_SPLITS = tuple(map(str, range(10)))
"""The paper's ten splits or folds."""

KEPT = (
    *("split_hash", "seed", "validation", "test", "metrics", "best_epoch", "epochs"),
    *("seconds_per_epoch", "peak_rss_bytes"),
)


def record_row(row: Row, work: Path, results: Path) -> Path | None:
    """Write a row's results file from all run folders there are, whoever made them.

    Splits recorded before whose run folders are not here (they were run on another machine) stay,
    provided that settings and versions are the same.

    Args:
        row: Which row.
        work: Where run folders are.
        results: Where results files go.

    Returns:
        The file, or ``None`` if no split has finished.
    """
    done: list[tuple[str, Path, dict[str, Any]]] = []
    failures: list[dict[str, Any]] = []
    for split in ALL_SPLITS:
        folder = Cell(row, split).folder(work)
        result = read_result(folder) if folder.is_dir() else None
        if result is not None:
            done.append((split, folder, result))
        elif (folder / "failure.json").is_file():
            failures.append({"split": split, **json.loads((folder / "failure.json").read_text())})
    if not done:
        return None
    config, first = read_config(done[0][1]), done[0][2]
    settings = as_plain(row.plan(done[0][0]))
    settings.pop("seed")
    path = record_path(row, results)
    code = code_digest(row.encoder)
    entries = [
        {"split": split, **{key: r[key] for key in KEPT}, "code": code, **_measures(folder)}
        for split, folder, r in done
    ]
    entries = _with_earlier(path, entries, settings, config["versions"])
    record = Record(
        row=asdict(row),
        metric=first["metric"],
        splits=entries,
        summary=summarise(entries),
        settings=settings,
        command=row.command(_range([entry["split"] for entry in entries])),
        selection=first["selection"],
        versions=config["versions"],
        machine=noted_machine(done[0][1]) or machine(),
        parameters=first["parameters"],
        notes=config["data"]["notes"],
        failures=failures,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(record))
    return path


def record_path(row: Row, results: Path) -> Path:
    """Return a row's results file; the lines of a study have a folder of their own."""
    return (results / STUDIES if row.study else results) / f"{row.name}.json"


def recorded(row: Row, results: Path) -> Record | None:
    """Return a row's record, ``None`` if there is none or it was made with other settings."""
    path = record_path(row, results)
    if not path.is_file():
        return None
    record = read_record(path)
    settings = as_plain(row.plan("0"))
    settings.pop("seed")
    return record if without_nones(record.settings) == without_nones(settings) else None


def is_recorded(cell: Cell, results: Path) -> bool:
    """Return whether a results file has the cell, made by the same code with the same settings."""
    record = recorded(cell.row, results)
    codes = {} if record is None else {e["split"]: e.get("code") for e in record.splits}
    return codes.get(cell.split) == cell.code


def _measures(folder: Path) -> dict[str, Any]:
    """Return what was measured on a run's model, by study."""
    files = sorted((folder / MEASURED).glob("*.json"))
    return {"measures": {p.stem: json.loads(p.read_text()) for p in files}} if files else {}


def _with_earlier(
    path: Path,
    entries: list[dict[str, Any]],
    settings: dict[str, Any],
    versions: dict[str, str],
) -> list[dict[str, Any]]:
    """Return the entries and those of other splits in the file, if they were made alike."""
    if not path.is_file():
        return entries
    before = json.loads(path.read_text())
    alike = without_nones(before["settings"]) == without_nones(settings)
    if not alike or before["versions"] != versions:
        return entries
    here = {entry["split"] for entry in entries}
    earlier = [entry for entry in before["splits"] if entry["split"] not in here]
    return sorted([*entries, *earlier], key=lambda entry: int(entry["split"]))


def read_records(results: Path) -> list[Record]:
    """Return every recorded row.

    Raises:
        DataError: If a file is damaged.
    """
    return [read_record(path) for path in sorted(results.glob("*.json"))]


def read_record(path: Path) -> Record:
    """Return a recorded row.

    Raises:
        DataError: If the file is damaged.
    """
    try:
        return Record(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise DataError(f"Expected '{path}' to be a results file ({error}).") from error


def summarise(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return number of splits, means and sample deviations of test and validation."""
    entries = list(entries)
    summary: dict[str, Any] = {"splits": len(entries)}
    for name in ("test", "validation"):
        values = [entry[name] for entry in entries if entry[name] is not None]
        if not values:
            continue
        mean = sum(values) / len(values)
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1))
        summary |= {f"{name}_mean": mean, f"{name}_deviation": spread}
    return summary


def _range(splits: Sequence[str]) -> str:
    numbers = sorted(int(s) for s in splits if s.isdecimal())
    whole = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}-{numbers[-1]}" if whole else ",".join(splits)
