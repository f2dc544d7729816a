"""Recorded runs: one JSON line each, one file per task, made from run folders that finished.

A run belongs to its method at a revision, its options, its data and its split. It is stale when the
method has another revision today, when no stored canary vouches for that revision, or when the
preset says something else by now. Stale runs stay, are shown as such, and are run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args

from filelock import FileLock

from geof.errors import ConfigError, DataError
from geof.io import read_json, write_atomically, writing
from geof.machine import machine, noted_machine
from geof.methods.interface import TaskKind
from geof.methods.registry import get_method
from geof.training.canary import vouched_revision
from geof.training.run_folder import read_config, read_result
from geof_paper.grid.cells import Cell, Row
from geof_paper.studies.statistics import MeanAndDeviation, mean_and_deviation

ALL_SPLITS = tuple(map(str, range(10)))
"""The paper's ten splits or folds."""

FAILURE = "failure.json"
"""In the folder of a run that did not come to its end, and why."""

MEASURED = "measures"
"""The folder, in a run's, of what was measured on its network."""

RowKey: TypeAlias = tuple[str, str, str, tuple[str, ...], bool]
"""What a row is found by within a task; the name of its study is for the record only."""


@dataclass(frozen=True, kw_only=True)
class AnyRun:
    """What decides a run.

    Attributes:
        row: Which method on which benchmark.
        split: Number of the split.
        revision: Of the method.
        options: Those that differ from the defaults of the code.
    """

    row: Row
    split: str
    revision: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FailedRun(AnyRun):
    """A run that did not come to its end.

    Attributes:
        failure: What was said, and in which epoch if one had begun.
    """

    failure: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RecordedRun(AnyRun):
    """A run that came to its end.

    Attributes:
        content_hash: Of the data; ``None`` where it was not noted.
        split_hash: Of the split's content.
        seed: What parameters and order were drawn from.
        metric: Which metric validation and test are, in percent.
        validation: At the chosen epoch.
        test: At the same; ``None`` where options were tried out, which does not read it.
        metrics: All test metrics.
        best_epoch: The chosen epoch.
        epochs: How many were trained.
        seconds_per_epoch: Their mean time.
        peak_rss_bytes: Largest memory of the process.
        parameters: Number of trained parameters.
        selection: How the epoch was chosen.
        versions: Of what ran.
        machine: On what it ran.
        notes: What a reader must know about the data.
        measures: What was measured on the trained network, by study.
        legacy_code: A digest of the source, as earlier versions noted it.
        stale: Why nothing vouches for it, where that was found once and for all.
    """

    content_hash: str | None = None
    split_hash: str
    seed: int
    metric: str
    validation: float
    test: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    best_epoch: int
    epochs: int
    seconds_per_epoch: float
    peak_rss_bytes: int
    parameters: int
    selection: str
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    notes: Sequence[str] = ()
    measures: Mapping[str, Any] = field(default_factory=dict)
    legacy_code: str | None = None
    stale: str | None = None

    @property
    def is_late(self) -> bool:
        """Whether the chosen epoch is among the last 5 % trained: more might have helped."""
        return self.best_epoch > 0.95 * self.epochs

    @property
    def seconds(self) -> float:
        """What all epochs took."""
        return self.seconds_per_epoch * self.epochs


@dataclass(frozen=True)
class Record:
    """What is recorded of a row, made with the same options.

    Attributes:
        row: Which method on which benchmark.
        runs: One per finished split, in their order; at least one.
        stale: Why runs are stale, by split.
    """

    row: Row
    runs: tuple[RecordedRun, ...]
    stale: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> RecordedRun:
        """The run of the first split, for what all of them share."""
        return self.runs[0]

    @property
    def command(self) -> str:
        """What makes these runs."""
        return self.row.command(_range([run.split for run in self.runs]))

    @property
    def test(self) -> MeanAndDeviation | None:
        """Mean and deviation over the splits; ``None`` where test was not read."""
        values = [run.test for run in self.runs if run.test is not None]
        return mean_and_deviation(values) if values else None

    @property
    def validation(self) -> MeanAndDeviation:
        """Mean and deviation over the splits."""
        return mean_and_deviation([run.validation for run in self.runs])

    @property
    def versions(self) -> dict[str, Any]:
        """Of what ran, all of them where splits differ."""
        return _together([run.versions for run in self.runs])

    @property
    def machine(self) -> dict[str, Any]:
        """On what it ran, all of them where splits differ."""
        return _together([run.machine for run in self.runs])


def record_cells(cells: Iterable[Cell], work: Path, results: Path) -> None:
    """Write down the runs of cells whose folders are here, finished or failed, whoever made them.

    A recorded run stays where the folder is not here (it was made on another machine), and where
    the run here failed.
    """
    found = [run for cell in cells if (run := _run_of(cell, work)) is not None]
    for task, runs in groupby(sorted(found, key=lambda run: run.row.task), lambda r: r.row.task):
        _write(results_file(results, task), list(runs))


def results_file(results: Path, task: TaskKind) -> Path:
    """Return the file of a task's runs."""
    return results / f"{task}.jsonl"


def read_runs(results: Path) -> list[RecordedRun]:
    """Return every recorded run.

    Raises:
        DataError: If a file is damaged.
    """
    return [run for run in _read_all(results) if isinstance(run, RecordedRun)]


def read_failures(results: Path) -> list[FailedRun]:
    """Return every run that did not come to its end.

    Raises:
        DataError: If a file is damaged.
    """
    return [run for run in _read_all(results) if isinstance(run, FailedRun)]


def read_records(results: Path) -> list[Record]:
    """Return every recorded row that belongs to no study, by name.

    Where the preset has changed and nothing was run since, the row is of the earlier options.

    Raises:
        DataError: If a file is damaged.
    """
    rows: dict[Row, list[RecordedRun]] = {}
    for run in read_runs(results):
        if run.row.study is None:
            rows.setdefault(run.row, []).append(run)
    return [_record(row, rows[row]) for row in sorted(rows, key=lambda row: row.name)]


def recorded(row: Row, results: Path) -> Record | None:
    """Return a row's record, ``None`` if there is none with the options the row has today."""
    runs = [run for run in _runs_of(row, results) if isinstance(run, RecordedRun)]
    if not runs:
        return None
    record = _record(row, runs)
    return record if record.first.options == row.options else None


def recorded_run(cell: Cell, results: Path, content_hash: str | None = None) -> RecordedRun | None:
    """Return the run of a cell if it is recorded and valid today.

    Args:
        cell: Which row on which split.
        results: Where results files are.
        content_hash: Of the data as they are here; runs made on others do not count.
    """
    for run in _runs_of(cell.row, results):
        if run.split == cell.split and isinstance(run, RecordedRun):
            known = {run.content_hash, content_hash} - {None}
            return run if len(known) < 2 and stale_reasons([run]) == [None] else None
    return None


def failed_splits(row: Row, results: Path) -> list[str]:
    """Return the splits of a row that are recorded as failed with the options it has today."""
    options = row.options
    runs = [run for run in _runs_of(row, results) if isinstance(run, FailedRun)]
    return [run.split for run in runs if run.options == options]


def expected_seconds(row: Row, results: Path) -> float | None:
    """Return the mean time a recorded split of a row took, ``None`` if there is none."""
    known = [run.seconds for run in _runs_of(row, results) if isinstance(run, RecordedRun)]
    return sum(known) / len(known) if known else None


def stale_reasons(runs: Iterable[RecordedRun]) -> list[str | None]:
    """Return of each run why it is not what its command would give today, ``None`` if it is."""
    known: dict[Row, _Present | str] = {}
    reasons = []
    for run in runs:
        if run.row not in known:
            known[run.row] = _present(run.row)
        reasons.append(run.stale or _stale_reason(run, known[run.row]))
    return reasons


class _Present(NamedTuple):
    """What a row is today: the revision of its method, which canaries vouch for, and options."""

    revision: int
    options: dict[str, Any]


def _present(row: Row) -> _Present | str:
    """Return what a row is today, or why nothing vouches for runs of it."""
    try:
        options = row.options
    except ConfigError as error:
        return str(error)
    revision = get_method(row.method).revision
    if vouched_revision(row.method, row.task) != revision:
        return f"no stored canary vouches for revision {revision} of '{row.method}'"
    return _Present(revision, options)


def _stale_reason(run: RecordedRun, present: _Present | str) -> str | None:
    if isinstance(present, str):
        return present
    if run.revision != present.revision:
        return (
            f"made by revision {run.revision} of '{run.row.method}', which has {present.revision}"
        )
    if run.options != present.options:
        return f"made with other options than preset '{run.row.preset}' has"
    return None


def _record(row: Row, runs: Sequence[RecordedRun]) -> Record:
    """Return the runs made with the present options, or else those that share the first one's."""
    present = _present(row)
    wanted = runs[0].options
    if isinstance(present, _Present) and any(run.options == present.options for run in runs):
        wanted = present.options
    chosen = tuple(run for run in runs if run.options == wanted)
    reasons = zip(chosen, stale_reasons(chosen), strict=True)
    return Record(row, chosen, {run.split: why for run, why in reasons if why is not None})


def _row_key(row: Row) -> RowKey:
    return row.dataset, row.method, row.preset, row.changes, row.reads_test


def _key(run: AnyRun) -> tuple[RowKey, int]:
    """Return what there is one run of in a file, and its place there."""
    return _row_key(run.row), int(run.split)


def _run_of(cell: Cell, work: Path) -> AnyRun | None:
    """Return the run in a cell's folder, ``None`` if it has neither ended nor failed."""
    folder = cell.folder(work)
    result = read_result(folder) if folder.is_dir() else None
    about: dict[str, Any] = {"row": cell.row, "split": cell.split, "revision": cell.revision}
    about["options"] = cell.row.options
    if result is None:
        path = folder / FAILURE
        if not path.is_file():
            return None
        return FailedRun(**about, failure=read_json(path, "what a run failed of"))
    config = read_config(folder)
    copied = {f.name: result[f.name] for f in fields(RecordedRun) if f.name in result}
    return RecordedRun(
        **{**copied, **about},
        content_hash=config["content_hash"] or None,
        versions=config["versions"],
        machine=noted_machine(folder) or machine(),
        notes=config["notes"],
        measures={
            path.stem: read_json(path, "what was measured on a run")
            for path in sorted((folder / MEASURED).glob("*.json"))
        },
    )


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Keep other writers of a file away; a disk that has no room for the lock is told in words."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write(path: Path, runs: Sequence[AnyRun]) -> None:
    """Put runs into a file in its one order, whoever else writes at the same time."""
    with _held(path):
        before = {_key(run): run for of_row in _read(path).values() for run in of_row}
        lines = dict(before)
        for run in runs:
            there = before.get(_key(run))
            if isinstance(run, RecordedRun):
                lines[_key(run)] = _with_measures(run, there)
            elif not isinstance(there, RecordedRun):
                lines[_key(run)] = run
        content = "".join(to_line(lines[key]) + "\n" for key in sorted(lines)).encode()
        if not path.is_file() or path.read_bytes() != content:
            write_atomically(path, content)


def _with_measures(run: RecordedRun, before: AnyRun | None) -> RecordedRun:
    """Return a run with what was measured on the same network on another machine, too."""
    if not isinstance(before, RecordedRun):
        return run
    same = ("revision", "options", "validation", "test", "best_epoch")
    if any(getattr(before, name) != getattr(run, name) for name in same):
        return run
    return replace(run, measures={**before.measures, **run.measures})


def to_line(run: AnyRun) -> str:
    """Return a run as a line of JSON; what is empty is left out."""
    row = {f.name: getattr(run.row, f.name) for f in fields(run.row)}
    own = {f.name: getattr(run, f.name) for f in fields(run) if f.name != "row"}
    whole = {name: value for name, value in {**row, **own}.items() if value not in _EMPTY}
    return json.dumps(whole, separators=(",", ":"), allow_nan=False)


_EMPTY: tuple[Any, ...] = (None, (), [], {})
_NAMES = tuple(f.name for f in fields(Row))


def _from_line(text: str) -> AnyRun:
    values = json.loads(text)
    about = {name: values.pop(name) for name in _NAMES if name in values}
    row = Row(**{**about, "changes": tuple(about.get("changes", ()))})
    return (FailedRun if "failure" in values else RecordedRun)(row=row, **values)


def _runs_of(row: Row, results: Path) -> list[AnyRun]:
    return _read(results_file(results, row.task)).get(_row_key(row), [])


def _read_all(results: Path) -> list[AnyRun]:
    files = [results_file(results, task) for task in get_args(TaskKind)]
    return [run for path in files for runs in _read(path).values() for run in runs]


def _read(path: Path) -> Mapping[RowKey, list[AnyRun]]:
    """Return the runs in a file by row."""
    if not path.is_file():
        return {}
    about = path.stat()
    return _parsed(path, about.st_mtime_ns, about.st_ino, about.st_size)


@lru_cache(maxsize=8)
def _parsed(path: Path, *state: int) -> Mapping[RowKey, list[AnyRun]]:
    """Return what is in a file, read once as long as it stays as it is."""
    found: dict[RowKey, list[AnyRun]] = {}
    # Line by line: bytes that are no text are told with the line they stand in.
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            run = _from_line(line.decode())
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(
                f"Expected a recorded run in line {number} of '{path}' ({error}). Take the line "
                "out, or the file from the repository."
            ) from error
        found.setdefault(_row_key(run.row), []).append(run)
    return found


Value = TypeVar("Value")


def _together(mappings: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """Return one mapping; values that differ stand side by side."""
    found: dict[str, list[Value]] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {n: v[0] if len(v) == 1 else ", ".join(map(str, v)) for n, v in found.items()}


def _range(splits: Sequence[str]) -> str:
    numbers = sorted(map(int, splits))
    whole = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}-{numbers[-1]}" if whole else ",".join(map(str, numbers))
