"""Tables on disk, CSV or Parquet, as text cells that know where they stand."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from geof.errors import DataError, nearest

File: TypeAlias = str | PathLike[str]


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

    def cells(self, name: str, role: str = "column") -> Sequence[str]:
        """Return a column, or raise ``DataError`` naming the nearest one there is."""
        if name not in self.columns:
            raise DataError(
                f"Expected the {role} {name!r} in '{self.source}'. " + nearest(name, self.columns)
            )
        return self.columns[name]


def read_table(file: File) -> Table:
    """Read a table by its ending: ``.csv``, ``.tsv``, ``.parquet`` or ``.pq``.

    Raises:
        DataError: If the file cannot be read, with the line where it breaks, or pyarrow is
            needed and not installed.
    """
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
    except OSError as error:
        raise _unreadable(file, error) from error
    except arrow.ArrowException as error:
        raise DataError(
            f"Expected a whole Parquet file at '{file}' (got: {error}). Write or copy it again."
        ) from error
    header = _checked_header(content.column_names, file)
    columns = {name: [_text(cell) for cell in content[name].to_pylist()] for name in header}
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
                "name another id_column."
            )
        seen[name] = row
    return tuple(seen)
