"""Reading raw files that may be broken, and the edges of an undirected graph."""

from __future__ import annotations

import gzip
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from geof.errors import DataError

Integers = NDArray[np.int64]


def undirected(source: Integers, target: Integers, num_nodes: int) -> tuple[Integers, Integers]:
    """Return both directions of every edge once, sorted by source and target, without self-loops.

    Returns:
        The edges ``(2, E)`` and, for each, its place in the input; of repeats the first in the
        same direction, and for an edge given in the other direction only, that one's.
    """
    place = np.arange(source.size)
    ends = np.stack([np.append(source, target), np.append(target, source)])
    place = np.append(place, place)
    proper = ends[0] != ends[1]
    ends, place = ends[:, proper], place[proper]
    _, first = np.unique(ends[0] * num_nodes + ends[1], return_index=True)
    return ends[:, first], place[first]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a broken file makes a reader raise into a :class:`DataError` that names it."""
    try:
        yield
    except DataError:
        raise
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
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


def read_table(path: Path, columns: int | None = None, dtype: Any = np.int64) -> NDArray[Any]:
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
