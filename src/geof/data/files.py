"""Reading files that may be missing, broken or not what they should be.

Raw files of the benchmarks are compared with their checksums and read as numbers; tables of a
user, CSV or Parquet, are read as text cells that know where they stand. Whatever is wrong raises a
:class:`~geof.errors.DataError` that names the file and, where there is one, the line.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geof.data.catalogue import DatasetFacts
from geof.draws import Integers
from geof.errors import SHOWN, DataError, GeofError, nearest

File: TypeAlias = str | PathLike[str]


# Raw files ------------------------------------------------------------------------------------


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def raw_digests(facts: DatasetFacts, root: Path) -> dict[str, str]:
    """Return the digest of every raw file that is there, by its path below the root.

    Raises:
        DataError: If a required file is missing, unreadable or not upstream's. The loader
            decides about a wrong optional file.
    """
    digests = {}
    for file in facts.files:
        path = root / file.path
        if file.optional and not path.exists():
            continue
        if not path.is_file():
            what = "something else there" if path.exists() else "nothing there"
            raise DataError(
                f"Expected the file '{path}' of {facts.name} (got {what}). Run 'geof data "
                f"fetch {facts.name}' or correct --data-root."
            )
        try:
            digest = file_digest(path)
        except OSError as error:
            raise DataError(
                f"Expected to read '{path}', but {error.strerror or error}. Check its permissions."
            ) from error
        if file.sha256 not in (None, digest) and not file.optional:
            raise DataError(
                f"Expected '{path}' to have the SHA-256 {file.sha256} (got {digest}): it is "
                f"truncated or altered. Delete it and run 'geof data fetch {facts.name}'."
            )
        digests[file.path] = digest
    return digests


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a broken file makes a reader raise into a :class:`DataError` that names it."""
    try:
        yield
    except GeofError:
        raise
    except Exception as error:  # pickle, zip, npy and text each have several ways of being damaged
        raise DataError(
            f"Expected to read '{path}', but it is truncated or not in the expected format "
            f"({type(error).__name__}: {error}). Fetch it again."
        ) from error


def require_indices(path: Path, values: Integers, limit: int, what: str) -> None:
    """Raise :class:`DataError` unless all ``values`` are in ``[0, limit)``."""
    wrong = np.flatnonzero((values < 0) | (values >= limit))
    if wrong.size:
        raise DataError(
            f"Expected every {what} in '{path}' to be in [0, {limit}) (got "
            f"{values[wrong[0]]} at position {wrong[0]}, and {wrong.size} such in all). Fetch "
            "the file again."
        )


def read_numbers(path: Path, columns: int | None = None, dtype: Any = np.int64) -> NDArray[Any]:
    """Read a comma-separated table of numbers, gzipped or not, as a matrix."""
    with reading(path), _open_text(path) as file:
        table = np.loadtxt(file, delimiter=",", dtype=dtype, ndmin=2)
    if columns not in (None, table.shape[1]):
        raise DataError(
            f"Expected {columns} columns in '{path}' (got {table.shape[1]}). Fetch it again."
        )
    return table


def _open_text(path: Path) -> IO[str]:
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8")


# Tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Cells as text, column by column; a blank cell is a missing value.

    Attributes:
        source: The file, as the user named it.
        columns: Cells by column name, in the file's order.
        places: Where each row begins in the file.
        unit: What ``places`` counts: ``"line"`` or ``"row"``.
        types: The type a column was stored with, where the file says so: a kind of
            :mod:`geof.data.columns`, or the name of a type that cannot be a feature.
    """

    source: str
    columns: Mapping[str, Sequence[str]]
    places: Sequence[int]
    unit: str = "line"
    types: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_frame(cls, frame: Any, source: str) -> Table:
        """Return the cells of a data frame (pandas, or what has its interface).

        Raises:
            DataError: If two columns have the same name, or one has none.
        """
        header = _checked_header([str(name) for name in frame.columns], source)
        columns: dict[str, list[str]] = {}
        types: dict[str, str] = {}
        for name, own in zip(header, frame.columns, strict=True):
            cells, missing = frame[own].tolist(), frame[own].isna().tolist()
            columns[name] = [
                "" if gone else _text(cell) for cell, gone in zip(cells, missing, strict=True)
            ]
            kind = getattr(frame[own].dtype, "kind", "O")
            if kind == "M":
                types[name] = str(frame[own].dtype)
            elif kind in "biuf":
                types[name] = "boolean" if kind == "b" else "numeric"
        return cls(source, columns, range(len(frame)), "row", types)

    def __len__(self) -> int:
        return len(self.places)

    def place(self, row: int) -> str:
        """Return file and line of a row, for a message."""
        return f"'{self.source}', {self.unit} {self.places[row]}"

    def take(self, rows: Sequence[int]) -> Table:
        """Return some of the rows, which keep their places."""
        columns = {name: [cells[row] for row in rows] for name, cells in self.columns.items()}
        places = [self.places[row] for row in rows]
        return Table(self.source, columns, places, self.unit, self.types)

    def cells(self, name: str, role: str = "column", flag: str = "") -> Sequence[str]:
        """Return a column.

        Args:
            name: The column.
            role: What it is for, for the message.
            flag: What names another one, likewise.

        Raises:
            DataError: If there is none, naming the nearest one there is.
        """
        if name not in self.columns:
            remedy = f"Name it with {flag}. " if flag else ""
            raise DataError(
                f"Expected the {role} {name!r} in '{self.source}'. {remedy}"
                + nearest(name, self.columns, most=SHOWN)
            )
        return self.columns[name]


def read_table(file: File | Table) -> Table:
    """Read a table by its ending: ``.csv``, ``.tsv``, ``.parquet`` or ``.pq``.

    One that is read already is returned as it is.

    Raises:
        DataError: If the file cannot be read, with the line where it breaks, or pyarrow is
            needed and not installed.
    """
    if isinstance(file, Table):
        return file
    ending = Path(file).suffix.lower()
    if ending in (".parquet", ".pq"):
        return _read_parquet(file)
    if ending in (".csv", ".tsv"):
        return _read_csv(file, "," if ending == ".csv" else "\t")
    raise DataError(f"Expected a .csv, .tsv or .parquet file (got '{file}').")


def _read_csv(file: File, delimiter: str) -> Table:
    rows: list[list[str]] = []
    lines: list[int] = []
    begin = 1
    try:
        # utf-8-sig also takes the mark that Excel puts before the header.
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter=delimiter, strict=True)
            for row in reader:
                if row:  # a blank line is no row
                    if rows and len(row) != len(rows[0]):
                        raise DataError(
                            f"Expected {len(rows[0])} fields as in the header (got {len(row)} at "
                            f"'{file}', line {begin}). Put text with commas in double quotes."
                        )
                    rows.append(row)
                    lines.append(begin)
                begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"Expected a well-formed table (got: {error}, in the row at '{file}', line {begin}). "
            "Check the double quotes there."
        ) from error
    except UnicodeDecodeError as error:
        place = _broken_line(file)
        raise DataError(f"Expected UTF-8 at {place} (got {error.reason}). Save it so.") from error
    except OSError as error:
        raise _unreadable(file, error) from error
    if not rows:
        raise DataError(f"Expected a header and rows in '{file}' (got an empty file).")
    header = _checked_header(rows.pop(0), file)
    cells = zip(*rows, strict=True) if rows else ((),) * len(header)
    return Table(str(file), dict(zip(header, cells, strict=True)), lines[1:])


def _broken_line(file: File) -> str:
    """Return the place of the first bytes that are not UTF-8; decoding in blocks hides it."""
    for number, line in enumerate(Path(file).read_bytes().split(b"\n"), start=1):
        try:
            line.decode()
        except UnicodeDecodeError:
            return f"'{file}', line {number}"
    return f"'{file}'"


def _read_parquet(file: File) -> Table:
    try:
        arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    except ImportError as error:
        raise DataError(f"Expected pyarrow to read '{file}'. Run: pip install pyarrow") from error
    try:
        with open(file, "rb") as stream:
            content = parquet.ParquetFile(stream).read()
        header = _checked_header(content.column_names, file)
        columns = {name: [_text(cell) for cell in content[name].to_pylist()] for name in header}
    except OSError as error:
        raise _unreadable(file, error) from error
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"Expected a whole Parquet file at '{file}' (got: {error}). Write or copy it again."
        ) from error
    types = {name: _kind_of(arrow.types, content[name].type) for name in header}
    return Table(str(file), columns, range(1, content.num_rows + 1), "row", types)


def _kind_of(types: Any, dtype: Any) -> str:
    if types.is_boolean(dtype):
        return "boolean"
    if types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype):
        return "numeric"
    if types.is_string(dtype) or types.is_large_string(dtype) or types.is_dictionary(dtype):
        return "categorical"
    return str(dtype)


def _text(cell: object) -> str:
    if cell is None:
        return ""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def _checked_header(header: Sequence[str], file: File) -> Sequence[str]:
    for place, name in enumerate(header, start=1):
        if not name.strip():
            raise DataError(
                f"Expected a name for column {place} of '{file}' (got none). Name it in the header;"
                " pandas leaves it out for an index (index=False)."
            )
        if header.index(name) != place - 1:
            raise DataError(f"Expected different column names in '{file}' (got {name!r} twice).")
    return header


def _unreadable(file: File, error: OSError) -> DataError:
    return DataError(f"Expected to read '{file}', but {error.strerror or error}. Check the path.")


def unique_cells(table: Table, column: str, known: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a column of identifiers.

    Raises:
        DataError: If one is empty, stands there twice, or belongs to a ``known`` node.
    """
    seen: dict[str, int] = {}
    taken = set(known)
    for row, name in enumerate(table.cells(column, "identifier column")):
        if not name:
            raise DataError(
                f"Expected an identifier in {column!r} (got none at {table.place(row)})."
            )
        if name in taken:
            raise DataError(
                f"Expected identifiers of new nodes (got {name!r}, a known node, at "
                f"{table.place(row)}). Leave known nodes out of the table; edges may name them."
            )
        if name in seen:
            raise DataError(
                f"Expected different identifiers in column {column!r} (got {name!r} at "
                f"{table.place(seen[name])}, and again at {table.place(row)}). Merge the rows, or "
                "name another column with id_column= (--id)."
            )
        seen[name] = row
    return tuple(seen)


def number(cell: str) -> float | None:
    """Return the number a cell holds, ``None`` for anything else."""
    if "_" in cell:  # float() would take 1_000 for a number
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def truth(cell: str) -> float | None:
    """Return 1 for true, 0 for false, ``None`` for anything else."""
    return {"true": 1.0, "false": 0.0}.get(cell.strip().lower())
