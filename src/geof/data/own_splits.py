"""Splits that the user's own data decide: a column of words, a file, scaffolds, groups, time.

A config names them in one word:

* ``column:NAME``, words ``train``, ``validation`` (``val``, ``valid``) and ``test`` in a column; an
  empty cell leaves a row out;
* the name of a file that ends in ``.json`` (lists of identifiers by part), ``.csv``, ``.tsv``,
  ``.parquet`` (columns ``id`` and ``part``) or ``.npz`` (of another run on the same data);
* ``scaffold``, molecules with one Bemis-Murcko scaffold in one part, large scaffolds first;
* ``group:NAME`` or ``group:NAME:SEED``, rows with the same cell in one part;
* ``time:NAME``, the earliest rows train, the latest test; equal times stay together.

Rows without a label are in no part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from geof.data.files import number, read_table, unique_cells
from geof.data.records import GraphSet, NodeGraph
from geof.data.splits import DatasetIdentity, IndexSplit
from geof.draws import raw_permutation, raw_stream
from geof.errors import ConfigError, DataError, nearest

S = TypeVar("S", bound=IndexSplit)

WORDS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
"""What a part may be called."""

PARTS = ("train", "validation", "test")
ENDINGS = (".json", ".csv", ".tsv", ".parquet", ".pq", ".npz")
SMILES = "<smiles>"
"""Stands for the column of SMILES among the columns a split goes by."""

FORMS = (
    "a number from 0, 'scaffold', 'column:NAME', 'group:NAME', 'time:NAME' or a file ending in "
    ".json, .csv or .npz"
)


def split_columns(split: str) -> tuple[str, ...]:
    """Return the columns that a split goes by; they are no features."""
    if split == "scaffold":
        return (SMILES,)
    how, _, name = split.partition(":")
    if how == "group":
        return (_group(name)[0],)
    return (name,) if how in ("column", "time") and name else ()


def split_file(split: str) -> Path | None:
    """Return the file a split is read from, ``None`` for the others."""
    return Path(split) if Path(split).suffix.lower() in ENDINGS else None


def own_split(
    split: str,
    data: NodeGraph | GraphSet,
    rows: Tensor,
    kind: type[S],
    shares: tuple[float, float],
) -> S:
    """Return the split a config names.

    Args:
        split: In the words of this module.
        data: What is split, with the columns it goes by set aside.
        rows: The labelled rows, as a mask.
        kind: Of nodes or of graphs.
        shares: Of training and validation, where the split has to choose; the rest is test.

    Raises:
        ConfigError: For a word there is not.
        DataError: If the data cannot be split so: an unknown word, an empty part.
    """
    how, _, name = split.partition(":")
    if (file := split_file(split)) is not None:
        return _from_file(file, data, rows, kind)
    if how not in ("scaffold", "column", "group", "time") or (how == "scaffold") == bool(name):
        raise ConfigError(f"Expected '--split' to be {FORMS} (got {split!r}).")
    (column,) = split_columns(split)
    if column == SMILES and "smiles" in data.aside:
        column = "smiles"  # as who reads a table in Python calls it
    if column not in data.aside:
        what = (
            "a table of SMILES (--molecules), in Python read_molecules(..., aside=['smiles']), or "
            "ogbg-molhiv"
        )
        if column != SMILES:
            what = (
                f"data of your own with the column {column!r} (in Python set aside by its reader, "
                f"aside=[{column!r}])"
            )
        raise ConfigError(f"Expected {what} for split {split!r} (got '{data.name}').")
    cells, ids = data.aside[column], _identifiers(data)
    if how == "column":
        return _build(_words(cells, ids, column), rows, kind, f"column {column}")
    labelled = rows.nonzero().flatten().tolist()
    if how == "time":
        moments = [_moment(cells[row], ids[row], column) for row in labelled]
        parts = _by_time(moments, column, shares)
    elif how == "group":
        parts = _by_group([cells[row] for row in labelled], column, shares, _group(name)[1])
    else:
        parts = _by_scaffold([scaffold_of(cells[row]) for row in labelled], shares)
    words = [""] * len(ids)
    for row, part in zip(labelled, parts, strict=True):
        words[row] = part
    return _build(words, rows, kind, split.replace(":", " "))


def _build(words: Sequence[str], rows: Tensor, kind: type[S], name: str) -> S:
    """Return the split of rows that have a word and a label."""
    found = {
        part: torch.tensor([i for i, word in enumerate(words) if word == part], dtype=torch.long)
        for part in PARTS
    }
    kept = {part: indices[rows[indices]] for part, indices in found.items()}
    for part, indices in kept.items():
        if not len(indices):
            given = f"{len(found[part])} without a label" if len(found[part]) else "none"
            raise DataError(
                f"Expected labelled rows in every part of the split '{name}' (got {given} in "
                f"'{part}'). Put some there, or split otherwise."
            )
    return kind(**kept, name=name)


def _identifiers(data: NodeGraph | GraphSet) -> tuple[str, ...]:
    own = data.graph_ids if isinstance(data, GraphSet) else data.node_ids
    size = len(data.graphs) if isinstance(data, GraphSet) else int(data.graph.num_nodes or 0)
    return own or tuple(map(str, range(size)))


# Columns and files ----------------------------------------------------------------------------


def _words(cells: Iterable[str], ids: Sequence[str], column: str) -> list[str]:
    found = []
    for name, cell in zip(ids, cells, strict=True):
        word = cell.strip().lower()
        if word and word not in WORDS:
            raise DataError(
                f"Expected train, validation or test in the split column {column!r}, or nothing "
                f"(got {cell!r} for {name!r}). " + nearest(word, PARTS)
            )
        found.append(WORDS.get(word, ""))
    return found


def _from_file(path: Path, data: NodeGraph | GraphSet, rows: Tensor, kind: type[S]) -> S:
    if path.suffix.lower() == ".npz":
        return kind.load(path, DatasetIdentity.of(data))
    ids = _identifiers(data)
    given = _json_parts(path) if path.suffix.lower() == ".json" else _table_parts(path)
    known = set(ids)
    for name in given:
        if name not in known:
            raise DataError(
                f"Expected identifiers of '{data.name}' in '{path}' (got {name!r}, which is none). "
                "Name nodes or graphs as the data do; without identifiers they are 0, 1, 2, ..."
            )
    return _build([given.get(name, "") for name in ids], rows, kind, f"file {path.name}")


def _json_parts(path: Path) -> dict[str, str]:
    """Return the part of every identifier of a JSON file."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"Expected a JSON file at '{path}' ({error}). Check it.") from error
    lists = isinstance(content, dict) and all(isinstance(v, list) for v in content.values())
    if not lists:
        raise DataError(
            f"Expected lists of identifiers by part in '{path}', such as "
            '{"train": [...], "validation": [...], "test": [...]} (got something else).'
        )
    parts: dict[str, str] = {}
    for word, names in content.items():
        if word.strip().lower() not in WORDS:
            raise DataError(
                f"Expected the parts train, validation and test in '{path}' (got {word!r}). "
                + nearest(word, PARTS)
            )
        for name in map(str, names):
            if name in parts:
                raise DataError(
                    f"Expected every identifier once in '{path}' (got {name!r} again). Keep it in "
                    "one part."
                )
            parts[name] = WORDS[word.strip().lower()]
    return parts


def _table_parts(path: Path) -> dict[str, str]:
    """Return the part of every identifier of a table."""
    table = read_table(path)
    columns = list(table.columns)
    named = ["id", "part"] if {"id", "part"} <= set(columns) else columns[:2]
    if len(named) < 2:
        raise DataError(f"Expected columns 'id' and 'part' in '{path}' (got {columns}).")
    ids = unique_cells(table, named[0])
    return dict(zip(ids, _words(table.cells(named[1]), ids, named[1]), strict=True))


# Groups, scaffolds, time ----------------------------------------------------------------------


def _group(name: str) -> tuple[str, int]:
    """Return column and seed of ``NAME`` or ``NAME:SEED``."""
    column, colon, seed = name.rpartition(":")
    return (column, int(seed)) if colon and column and seed.isdecimal() else (name, 0)


def _members(keys: Sequence[str]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        members.setdefault(key, []).append(row)
    return members


def _by_group(
    keys: Sequence[str], column: str, shares: tuple[float, float], seed: int
) -> list[str]:
    """Deal whole groups, large ones first, each to the part that lacks most; ties by the seed."""
    if bare := sum(not key.strip() for key in keys):
        raise DataError(
            f"Expected a group in column {column!r} for every labelled row (got {bare} empty cells "
            f"of {len(keys)}). Fill them in."
        )
    members = _members(keys)
    if len(members) < len(PARTS):
        raise DataError(
            f"Expected at least 3 groups in column {column!r}, one per part (got {len(members)}). "
            "Name a column with more."
        )
    wanted = np.array([*shares, 1 - sum(shares)]) * len(keys)
    names = sorted(members)
    drawn = [names[i] for i in raw_permutation(raw_stream(seed), len(names)).tolist()]
    parts = [""] * len(keys)
    filled = np.zeros(len(PARTS))
    left = len(names)
    for name in sorted(drawn, key=lambda name: -len(members[name])):
        empty = np.flatnonzero(filled == 0)
        lack = wanted - filled
        if left <= len(empty):  # what is left is just enough for a group in every part
            lack[filled > 0] = -math.inf
        place = int(lack.argmax())
        for row in members[name]:
            parts[row] = PARTS[place]
        filled[place] += len(members[name])
        left -= 1
    return parts


def scaffold_of(smiles: str) -> str:
    """Return a molecule's Bemis-Murcko scaffold as SMILES; empty for one without rings."""
    from geof.data.molecules import rdkit_version

    rdkit_version()
    from rdkit import rdBase
    from rdkit.Chem.Scaffolds import MurckoScaffold

    scaffold: Any = MurckoScaffold.MurckoScaffoldSmiles
    with rdBase.BlockLogs():
        return str(scaffold(smiles=smiles.strip(), includeChirality=False))


def _by_scaffold(scaffolds: Sequence[str], shares: tuple[float, float]) -> list[str]:
    """Fill training with the largest scaffolds, then validation, then test, as OGB does."""
    members = sorted(_members(scaffolds).values(), key=lambda rows: (-len(rows), rows[0]))
    first, second = (share * len(scaffolds) for share in (shares[0], sum(shares)))
    parts = [""] * len(scaffolds)
    counts = dict.fromkeys(PARTS, 0)
    for rows in members:
        fits = counts["train"] + len(rows) <= first
        part = "train" if fits else "validation"
        if not fits and counts["train"] + counts["validation"] + len(rows) > second:
            part = "test"
        for row in rows:
            parts[row] = part
        counts[part] += len(rows)
    return parts


def _moment(cell: str, name: str, column: str) -> tuple[str, float]:
    """Return what a cell holds, a number or a date, and its place in time."""
    value = number(cell)
    if value is not None and math.isfinite(value):
        return "numbers", value
    try:
        moment = datetime.fromisoformat(cell.strip())
    except ValueError:
        raise DataError(
            f"Expected a number or a date such as 2024-05-31 in the time column {column!r} (got "
            f"{cell!r} for {name!r}). Fill it in for every labelled row."
        ) from None
    return "dates", (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _by_time(
    moments: Sequence[tuple[str, float]], column: str, shares: tuple[float, float]
) -> list[str]:
    """Cut at the shares; rows of the same moment go with the earlier part."""
    if len({what for what, _ in moments}) > 1:
        raise DataError(
            f"Expected numbers or dates in the time column {column!r} (got both). Write them alike."
        )
    ordered = sorted(moments)
    size = len(ordered)
    cuts = [min(max(round(share * size), 1), size) for share in (shares[0], sum(shares))]
    last = [ordered[cut - 1] for cut in cuts]
    return [
        "train" if moment <= last[0] else "validation" if moment <= last[1] else "test"
        for moment in moments
    ]
