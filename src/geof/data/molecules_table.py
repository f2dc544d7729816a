"""Molecules from a table with a SMILES column, for graph classification and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import torch
from torch_geometric.data import Data

from geof.data.assembly import graph_set, require_members
from geof.data.columns import class_names_of, label_indices
from geof.data.molecules import molecule_graph
from geof.data.records import GraphSet
from geof.data.table_files import File, Table, read_table, unique_cells
from geof.errors import ConfigError, DataError, nearest

OnInvalid: TypeAlias = Literal["note", "error"]


def read_molecules(
    file: File,
    *,
    smiles: str = "smiles",
    label: str | None = None,
    id_column: str | None = None,
    class_names: Sequence[str] = (),
    on_invalid: OnInvalid = "note",
    allow_singletons: bool = False,
) -> GraphSet:
    """Read molecules with OGB's atom and bond features.

    Args:
        file: ``.csv``, ``.tsv`` or ``.parquet``, a row per molecule. Further columns are not used
            and named in a note.
        smiles: The column of SMILES.
        label: The column to predict; an empty cell is no label (-1). ``None`` for new molecules.
        id_column: The column of identifiers (default: rows, counted from 0, as the file has them).
        class_names: For prediction: the classes a model was trained on, which labels must be among.
        on_invalid: ``"note"`` leaves out rows whose SMILES cannot be parsed and names their lines
            in a note; ``"error"`` refuses the first one.
        allow_singletons: Whether a class may have a single member.

    Raises:
        DataError: With file and line of what cannot be used.
    """
    if on_invalid not in get_args(OnInvalid):
        hint = nearest(on_invalid, get_args(OnInvalid))
        raise ConfigError(f"Unknown on_invalid={on_invalid!r}. {hint}")
    table = read_table(file)
    graphs, invalid = _parse(table, smiles, on_invalid)
    rows = [row for row in range(len(table)) if row not in invalid]
    kept = table.take(rows)
    y, names = torch.full((len(kept),), -1), tuple(class_names)
    if label is not None:
        names = names or class_names_of(kept.cells(label, "label column"))
        y = label_indices(kept, label, names)
        if not class_names:
            require_members(y, names, allow_singletons, f" of column {label!r} in '{file}'")
    ids = unique_cells(kept, id_column) if id_column else tuple(map(str, rows))
    unlabelled = 0 if label is None else int((y < 0).sum())
    notes = _notes(table, invalid, {smiles, label, id_column}, unlabelled)
    return graph_set(Path(file).stem, graphs, y, names, ids, notes)


def _parse(table: Table, smiles: str, on_invalid: OnInvalid) -> tuple[list[Data], dict[int, str]]:
    """Return the molecules, and the SMILES of rows that are none."""
    graphs: list[Data] = []
    invalid: dict[int, str] = {}
    for row, text in enumerate(table.cells(smiles, "SMILES column")):
        graph = molecule_graph(text.strip()) if text.strip() else None
        if graph is not None:
            graphs.append(graph)
            continue
        if on_invalid == "error":
            raise DataError(
                f"Expected a SMILES that can be parsed in column {smiles!r} (got {text!r} at "
                f"{table.place(row)}). Correct it, or leave such rows out with on_invalid='note'."
            )
        invalid[row] = text
    if not graphs:
        raise DataError(
            f"Expected molecules in column {smiles!r} of '{table.source}' (got {len(table)} rows, "
            "none that can be parsed). Name the column with smiles=."
        )
    return graphs, invalid


def _notes(
    table: Table, invalid: dict[int, str], used: set[str | None], unlabelled: int
) -> list[str]:
    notes = []
    if invalid:
        places = ", ".join(f"{table.places[row]} ({text!r})" for row, text in invalid.items())
        notes.append(
            f"{len(invalid)} of {len(table)} SMILES in '{table.source}' cannot be parsed and are "
            f"left out: {table.unit} {places}."
        )
    if unlabelled:
        notes.append(f"{unlabelled} of {len(table) - len(invalid)} without a label.")
    if unused := [repr(name) for name in table.columns if name not in used]:
        notes.append(f"Columns not used: {', '.join(unused)}.")
    return notes
