"""Node and edge tables, CSV or Parquet, as graphs; and new rows for a trained model.

A table has a header. Nodes carry an identifier of any text, which edges name and predictions give
back; an edge joins two nodes and has no direction unless that is asked for. The readers write
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from geof.data.columns import ColumnEncoder, EdgeSchema, Kind, Missing
from geof.data.files import File, Table, read_table, unique_cells
from geof.data.records import (
    ONE_WAY,
    CarriedByEdges,
    EdgeColumns,
    EdgeInputs,
    NodeGraph,
    change_notes,
    edge_columns_note,
    edge_inputs,
    missing_note,
    node_graph,
    one_way_edges,
    require_members,
)
from geof.data.targets import TargetKind, column_facts, require_known
from geof.errors import ConfigError, DataError, ShapeError


class EdgeOptions(TypedDict, total=False):
    """How a table of edges or pairs is read; see :func:`read_node_table`."""

    source: str | None
    target: str | None
    edge_columns: EdgeColumns
    directed: bool


def read_node_table(
    nodes: File | Table,
    edges: File | Table,
    *,
    label: str | Sequence[str] | None,
    id_column: str | None = None,
    source: str | None = None,
    target: str | None = None,
    drop: Iterable[str] = (),
    kinds: Mapping[str, Kind] | None = None,
    missing: Missing = "error",
    edge_columns: EdgeColumns = "refuse",
    edge_weight: str | None = None,
    edge_attr: Iterable[str] = (),
    allow_singletons: bool = False,
    target_kind: TargetKind | None = None,
    directed: bool = False,
    aside: Sequence[str] = (),
) -> tuple[NodeGraph, ColumnEncoder]:
    """Read a graph and fit the schema of its columns.

    Args:
        nodes: ``.csv``, ``.tsv`` or ``.parquet``, a row per node; or a table that is read already.
        edges: The same, a row per edge; ``a, b`` and ``b, a`` are one edge unless ``directed``.
        label: The column to predict, or several; an empty cell is no label. ``None`` without
            labels.
        id_column: The column of identifiers (default: ``id``, otherwise the first).
        source: The edges' first column of identifiers (default: ``source`` when there is also
            ``target``, otherwise the first).
        target: The second one.
        drop: Columns of ``nodes`` to leave out.
        kinds: The kind of columns that should not be guessed, for instance
            ``{"postcode": "categorical"}``.
        missing: ``"mean"`` fills in missing numbers and adds a column that says where.
        edge_columns: What to do with further columns of ``edges``: ``"use"`` takes them for
            attributes, ``"ignore"`` drops them.
        edge_weight: The column of weights, numbers of at least 0.
        edge_attr: Columns of attributes: words, truth values and few different whole numbers are
            categories, other numbers are standardised.
        allow_singletons: Whether a class may have a single member.
        target_kind: ``"classes"``, ``"regression"`` or ``"binary"`` (default: guessed, with a
            note).
        directed: Whether messages run from source to target alone.
        aside: Columns that a split goes by: kept beside the graph, no features.

    Returns:
        The graph, and the encoder that new tables go through.

    Raises:
        DataError: With file and line of what cannot be used.
    """
    table, edge_table = read_table(nodes), read_table(edges)
    labels = (label,) if isinstance(label, str) else tuple(label or ())
    kept = {name: tuple(table.cells(name, "split column")) for name in aside}
    encoder = ColumnEncoder.fit(
        table,
        label=labels,
        id_column=_id_column(table, id_column, labels),
        drop=(*drop, *(name for name in aside if name not in drop)),
        kinds=kinds,
        missing=missing,
        target_kind=target_kind,
    )
    edge_options: EdgeOptions = {
        "source": source,
        "target": target,
        "edge_columns": edge_columns,
        "directed": directed,
    }
    named = [*edge_attr]
    if edge_columns == "use":
        ends = _end_columns(edge_table, source, target)
        named = [name for name in edge_table.columns if name not in {*ends, edge_weight}]
    if named or edge_weight is not None:
        encoder = replace(encoder, edges=EdgeSchema.fit(edge_table, named, edge_weight))
    graph = _encode_graph(table, edge_table, encoder, edge_options)
    said = column_facts(table, labels, target_kind)[1] if labels else []
    graph = replace(graph, aside=kept, notes=(*said, *graph.notes))
    y = graph.graph.y
    if graph.targets.kind != "classes":
        require_known(y, graph.targets, f"'{table.source}'")
        return graph, encoder
    counts = torch.bincount(y[y >= 0], minlength=graph.num_classes)
    lonely = (counts[y] == 1) & (y >= 0) if graph.num_classes else y > 0
    where = f" at {table.place(int(lonely.int().argmax()))}" if lonely.any() else ""
    require_members(y, graph.class_names, allow_singletons, where)
    return graph, encoder


def encode_new_graph(
    nodes: File | Table,
    edges: File | Table,
    encoder: ColumnEncoder,
    **edge_options: Unpack[EdgeOptions],
) -> NodeGraph:
    """Read another graph with the columns a model was trained on; labels are optional.

    Args:
        nodes: The new nodes, with the training table's columns.
        edges: Their edges.
        encoder: What :func:`read_node_table` fitted.
        **edge_options: ``source``, ``target`` and ``edge_columns`` as in :func:`read_node_table`.
    """
    return _encode_graph(read_table(nodes), read_table(edges), encoder, edge_options)


def encode_new_nodes(
    graph: NodeGraph,
    nodes: File,
    edges: File,
    encoder: ColumnEncoder,
    **edge_options: Unpack[EdgeOptions],
) -> NodeGraph:
    """Append unseen nodes to a graph; known nodes keep their index, new ones follow in order.

    Args:
        graph: The graph a model was trained on.
        nodes: The new nodes, with the training table's columns; labels are optional.
        edges: Further edges, between new and known nodes alike.
        encoder: What :func:`read_node_table` fitted.
        **edge_options: ``source``, ``target`` and ``edge_columns`` as in :func:`read_node_table`.

    Raises:
        DataError: Also when a new node has the identifier of a known one.
    """
    old = graph.graph
    known = graph.node_ids or tuple(map(str, range(old.num_nodes)))
    table, edge_table = read_table(nodes), read_table(edges)
    index = {name: i for i, name in enumerate(known)}
    ids = _identifiers(table, encoder, index)
    index |= {name: len(known) + i for i, name in enumerate(ids)}
    pairs, notes, carried = _edges(edge_table, index, edge_options, encoder.edges)
    x, said = encoder.encode_noting(table)
    named = graph.class_names, graph.targets
    if old.x.size(1) != x.size(1) or named != (encoder.class_names, encoder.targets):
        raise ShapeError(
            f"Expected the encoder of this graph, {old.x.size(1)} features and classes "
            f"{graph.class_names} (got {x.size(1)} and {encoder.class_names})."
        )
    notes = [*graph.notes, f"{len(ids)} new nodes after {len(known)} known ones.", *notes, *said]
    once = torch.arange(old.num_edges)
    if not graph.directed:
        once = (old.edge_index[0] < old.edge_index[1]).nonzero().flatten()
    carried = _joined(edge_inputs(old, once), carried)
    return node_graph(
        graph.name,
        torch.cat([old.x.to_dense(), x]),
        torch.cat([old.edge_index[:, once], pairs], dim=1),
        torch.cat([old.y, encoder.encode_labels(table)]),
        graph.class_names,
        (*known, *ids),
        notes,
        directed=False,
        keep_direction=graph.directed,
        targets=graph.targets,
        carried=carried,
    )


def _joined(known: EdgeInputs, new: CarriedByEdges | None) -> CarriedByEdges | None:
    """Return what known and new edges carry, one after another."""
    if new is None:
        return None
    weight, attributes = new.weight, new.attributes
    if weight is not None:
        weight = torch.cat([known["edge_weight"], weight])
    if attributes is not None:
        attributes = torch.cat([known["edge_attr"], attributes])
    return CarriedByEdges(weight, attributes, new.sizes)


def read_pairs(
    file: File,
    node_ids: Sequence[str],
    **edge_options: Unpack[EdgeOptions],
) -> Tensor:
    """Read candidate pairs for link prediction, ``(2, P)``, row by row as the file has them.

    Args:
        file: ``.csv``, ``.tsv`` or ``.parquet``, a row per pair of identifiers.
        node_ids: The identifiers in node order.
        **edge_options: ``source``, ``target`` and ``edge_columns`` as in :func:`read_node_table`.
    """
    index = {name: i for i, name in enumerate(node_ids)}
    return _edges(read_table(file), index, edge_options)[0]


def _id_column(table: Table, chosen: str | None, labels: Sequence[str]) -> str:
    """Return the chosen column, ``id``, or the first; it must not be the label."""
    name = chosen or ("id" if "id" in table.columns else next(iter(table.columns)))
    table.cells(name, "identifier column")
    if name in labels:
        raise ConfigError(
            f"Expected identifiers and labels in different columns of '{table.source}' (got "
            f"{name!r} for both). Name the identifiers with id_column= (--id)."
        )
    return name


def _identifiers(
    table: Table, encoder: ColumnEncoder, known: Iterable[str] = ()
) -> tuple[str, ...]:
    if encoder.id_column is None:
        raise ConfigError("Expected an encoder with an id_column (got one without).")
    if not len(table):
        raise DataError(f"Expected at least one row in '{table.source}' (got only a header).")
    return unique_cells(table, encoder.id_column, known)


def _encode_graph(
    nodes: Table, edges: Table, encoder: ColumnEncoder, edge_options: EdgeOptions
) -> NodeGraph:
    ids = _identifiers(nodes, encoder)
    index = {name: i for i, name in enumerate(ids)}
    pairs, notes, carried = _edges(edges, index, edge_options, encoder.edges)
    x, said = encoder.encode_noting(nodes)
    y = encoder.encode_labels(nodes)
    classes, directed = encoder.targets.kind == "classes", edge_options.get("directed", False)
    unlabelled = int((y < 0).sum()) if classes else 0
    if encoder.label and unlabelled:
        notes.append(f"{unlabelled} of {len(y)} without a label.")
    if not classes:
        notes += missing_note(y)
    one_way = 0 if directed else one_way_edges(pairs.numpy(), len(ids))
    graph = node_graph(
        Path(nodes.source).stem,
        x,
        pairs,
        y,
        encoder.class_names,
        ids,
        [*said, *notes],
        directed=False,
        keep_direction=directed,
        targets=encoder.targets,
        carried=carried,
    )
    return replace(graph, notes=(*graph.notes, *change_notes({ONE_WAY: one_way})))


def _edges(
    table: Table, index: Mapping[str, int], options: EdgeOptions, schema: EdgeSchema | None = None
) -> tuple[Tensor, list[str], CarriedByEdges | None]:
    """Return the pairs of node indices, ``(2, rows)``, what was ignored, and what edges carry."""
    names = _end_columns(table, options.get("source"), options.get("target"))
    if all(name in index for name in names):
        raise DataError(
            f"Expected a header in '{table.source}' (got an edge, {names[0]!r} to {names[1]!r}). "
            "Put a line with the column names first."
        )
    used = () if schema is None else schema.names
    if taken := [name for name in used if name in names]:
        raise ConfigError(
            f"Expected weights and attributes of edges in columns of their own (got {taken[0]!r}, "
            "which holds identifiers). Name another one."
        )
    extra = [name for name in table.columns if name not in (*names, *used)]
    policy = options.get("edge_columns", "refuse")
    notes = edge_columns_note(extra, f"'{table.source}'", {"edge_columns": policy})
    ends = [_indices(table, name, index) for name in names]
    carried = None if schema is None else schema.encode(table)
    return torch.tensor(ends, dtype=torch.long).reshape(2, -1), notes, carried


def _end_columns(table: Table, source: str | None, target: str | None) -> tuple[str, str]:
    columns = list(table.columns)
    if len(columns) < 2:
        raise DataError(
            f"Expected two columns of identifiers in '{table.source}' (got {columns}). Separate "
            "them by commas (.csv) or tabs (.tsv)."
        )
    default = ("source", "target") if {"source", "target"} <= {*columns} else columns[:2]
    names = source or default[0], target or default[1]
    for name in names:
        table.cells(name, "edge column")
    if names[0] == names[1]:
        raise ConfigError(
            f"Expected two different edge columns (got {names[0]!r} twice). Name both, source and "
            "target."
        )
    return names


def _indices(table: Table, column: str, index: Mapping[str, int]) -> list[int]:
    indices = [index.get(name, -1) for name in table.columns[column]]
    if -1 in indices:
        row = indices.index(-1)
        name = table.columns[column][row]
        remedy = "Add the node or remove the row."
        if name.strip() in index:
            remedy = "Remove the spaces around it."
        raise DataError(
            f"Expected the identifier of a node in column {column!r} (got {name!r} at "
            f"{table.place(row)}, which no node has). {remedy}"
        )
    return indices
