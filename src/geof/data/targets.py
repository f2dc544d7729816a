"""What is to be predicted: classes, numbers, or several yes-or-no targets, from cells and arrays.

Classes are indices ``(n,)``, -1 where there is none. Numbers and binary targets are a float64
matrix ``(n, T)`` with NaN where a value is missing; a row may lack some of its targets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geof.data.files import Table, number, truth
from geof.errors import ConfigError, DataError, DtypeError, nearest

TargetKind: TypeAlias = Literal["classes", "regression", "binary"]


@dataclass(frozen=True)
class TargetFacts:
    """What the labels of a graph or a set of graphs are.

    Attributes:
        kind: One of several classes, numbers, or yes-or-no targets.
        names: Of the targets; empty for classes, which have names of their own.
    """

    kind: TargetKind = "classes"
    names: tuple[str, ...] = ()


CLASSES = TargetFacts()


def labelled(y: Tensor) -> Tensor:
    """Return which rows have a label, or at least one of several targets, as a mask."""
    return (~y.isnan()).any(1) if y.is_floating_point() else y >= 0


def check_target_kind(kind: str | None) -> None:
    """Raise ``ConfigError`` for a kind there is not, naming the nearest."""
    if kind is not None and kind not in get_args(TargetKind):
        raise ConfigError(f"Unknown target_kind={kind!r}. " + nearest(kind, get_args(TargetKind)))


# Columns of a table ---------------------------------------------------------------------------


def column_facts(
    table: Table, columns: Sequence[str], asked: TargetKind | None = None
) -> tuple[TargetFacts, list[str]]:
    """Return what columns to predict hold, and a note where that was guessed.

    One column is regression if its cells are numbers and some are not whole; several columns are
    binary if they hold nothing but 0, 1, true and false, and regression otherwise.

    Raises:
        ConfigError: For several columns of classes.
    """
    check_target_kind(asked)
    if asked == "classes" and len(columns) > 1:
        raise ConfigError(
            f"Expected one label column for target_kind='classes' (got {len(columns)}). Several "
            "columns are 'binary' or 'regression' targets."
        )
    cells = {name: [c for c in table.cells(name, "label column") if c.strip()] for name in columns}
    if asked is not None:
        return (CLASSES if asked == "classes" else TargetFacts(asked, tuple(columns))), []
    if len(columns) == 1:
        if not _amounts(cells[columns[0]]):
            return CLASSES, []
        return TargetFacts("regression", tuple(columns)), [
            f"Column {columns[0]!r} holds numbers that are not whole: they are predicted as "
            "numbers. Choose target_kind='classes' (--target-kind classes) if they name classes."
        ]
    binary = all(_zero_or_one(cell) is not None for own in cells.values() for cell in own)
    kind: TargetKind = "binary" if binary else "regression"
    what = "yes-or-no targets" if binary else "numbers"
    return TargetFacts(kind, tuple(columns)), [
        f"{len(columns)} label columns are predicted as {what}; target_kind (--target-kind) decides"
        " otherwise."
    ]


def column_targets(table: Table, facts: TargetFacts) -> Tensor:
    """Return the targets of every row, ``(rows, T)``; a column that is absent is all missing.

    Raises:
        DataError: With the place of a cell that is no such target.
    """
    binary = facts.kind == "binary"
    parse, wanted = (_zero_or_one, "0 or 1") if binary else (number, "a finite number")
    y = np.full((len(table), len(facts.names)), math.nan)
    for place, name in enumerate(facts.names):
        for row, cell in enumerate(table.columns.get(name, ())):
            value = parse(cell) if cell.strip() else math.nan
            if value is None or (cell.strip() and not math.isfinite(value)):
                raise DataError(
                    f"Expected {wanted} in column {name!r}, a {facts.kind} target (got {cell!r} at "
                    f"{table.place(row)}). Correct it, leave the cell empty if the value is "
                    "missing, or predict words with target_kind='classes' (--target-kind classes)."
                )
            y[row, place] = value
    return torch.from_numpy(y)


def require_known(y: Tensor, facts: TargetFacts, where: str) -> None:
    """Raise ``DataError`` if a target has no value at all."""
    for place, name in enumerate(facts.names):
        if bool(y[:, place].isnan().all()):
            raise DataError(
                f"Expected values of the target {name!r} in {where} (got none). Fill in the known "
                "ones, or do not name it as a label."
            )


def _amounts(cells: Sequence[str]) -> bool:
    """Return whether cells are numbers, some of them not whole; a slip among them is no reason."""
    values = [number(cell) for cell in cells]
    words = sum(value is None for value in values)
    broken = any(v is not None and math.isfinite(v) and v != v // 1 for v in values)
    return broken and 2 * words < len(cells)


def _zero_or_one(cell: str) -> float | None:
    value = truth(cell)
    value = number(cell) if value is None else value
    return value if value in (0.0, 1.0) else None


# Arrays ---------------------------------------------------------------------------------------


def array_facts(
    labels: NDArray[Any] | None, asked: TargetKind | None = None, names: Sequence[str] = ()
) -> tuple[TargetFacts, list[str]]:
    """Return what an array of labels holds, and a note where that was guessed.

    Floats that are not whole are regression; a matrix of several columns is binary if it holds
    nothing but 0, 1 and missing values (NaN, or -1 among whole numbers), otherwise regression.
    """
    check_target_kind(asked)
    if labels is None or asked == "classes":
        return CLASSES, []
    several = labels.ndim == 2 and labels.shape[1] > 1
    count = labels.shape[1] if labels.ndim == 2 else 1
    names = tuple(names) or (tuple(f"target_{i}" for i in range(count)) if several else ("target",))
    if asked is not None:
        return TargetFacts(asked, names), []
    if labels.dtype.kind not in "biuf":
        return CLASSES, []
    finite = labels[np.isfinite(labels)] if labels.dtype.kind == "f" else labels
    if several and np.isin(finite, (0, 1) if labels.dtype.kind == "f" else (-1, 0, 1)).all():
        return TargetFacts("binary", names), [f"{count} targets of 0 and 1: each is predicted."]
    if several or (labels.dtype.kind == "f" and (finite != np.floor(finite)).any()):
        return TargetFacts("regression", names), [
            "The labels are numbers that are not whole or not of one column: they are predicted as "
            "numbers. Choose target_kind='classes' (--target-kind classes) if they are classes."
        ]
    return CLASSES, []


def array_targets(labels: NDArray[Any], count: int, facts: TargetFacts) -> Tensor:
    """Return the targets of every row, ``(count, T)``.

    Raises:
        DtypeError: If they are text.
        DataError: If one is infinite, or no 0 or 1 where that is wanted.
    """
    if labels.dtype.kind not in "biuf":
        raise DtypeError(
            f"Expected numbers as {facts.kind} targets (got {labels.dtype}). Give numbers, or "
            "predict words with target_kind='classes' (--target-kind classes)."
        )
    if labels.shape[0] != count or labels.size != count * len(facts.names):
        raise DataError(
            f"Expected {len(facts.names)} targets for each of {count} rows (got shape "
            f"{labels.shape})."
        )
    y = labels.reshape(count, -1).astype(np.float64)
    if facts.kind == "binary" and labels.dtype.kind in "iu":
        y[y == -1] = math.nan
    known = y[~np.isnan(y)]
    wrong = known[~np.isfinite(known) if facts.kind == "regression" else ~np.isin(known, (0, 1))]
    if wrong.size:
        wanted = "finite numbers" if facts.kind == "regression" else "0 and 1"
        raise DataError(
            f"Expected {wanted} as {facts.kind} targets, NaN where one is missing (got {wrong[0]})."
        )
    return torch.from_numpy(y)
