"""What people have graphs in, brought to the two records of :mod:`geof.data.records`.

A graph is a PyG ``Data``, a NetworkX graph, a pair of arrays (features, edges or a square sparse
matrix), a pair of data frames (nodes, edges), or a :class:`~geof.data.records.NodeGraph`; one of a
set may also be the SMILES of a molecule. Labels are read apart from it: an estimator sees those it
is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, issparse
from torch import Tensor
from torch_geometric.data import Data

from geof.data.columns import ArrayEncoder, ColumnEncoder, Schema
from geof.data.files import Table
from geof.data.formats import from_networkx, from_pyg, from_pyg_list
from geof.data.records import GraphSet, NodeGraph, ReadOptions, sparse_features
from geof.data.sources import encoded, standardised
from geof.data.tables import encode_new_graph, read_node_table
from geof.data.targets import CLASSES, labelled
from geof.errors import ConfigError, DataError, DtypeError, ShapeError, nearest

FORMS = (
    "a PyG Data, a NetworkX graph, a pair (features, edge_index or sparse matrix), a pair of data "
    "frames (nodes, edges) or a geof NodeGraph"
)

LABEL_NAMES = ("y", "label")
"""What the labels of a NetworkX graph are looked for under."""


@dataclass(frozen=True)
class Reading:
    """How an estimator reads graphs.

    Attributes:
        options: What every reader lets the caller decide.
        label: The column or attribute to predict, or several.
        standardise: Whether columns of numbers are standardised.
    """

    options: ReadOptions
    label: str | Sequence[str] | None = None
    standardise: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label or ())


@dataclass(frozen=True)
class Known:
    """A graph without labels, and what its features went through."""

    graph: NodeGraph
    schema: Schema | None


def is_graph(value: Any) -> bool:
    """Return whether a value is one graph rather than identifiers of nodes."""
    return isinstance(value, Data | NodeGraph) or _is_networkx(value) or _is_pair_of(value)


def read_graph(value: Any, reading: Reading, schema: Schema | None = None) -> Known:
    """Return a graph of any form.

    Args:
        value: The graph.
        reading: How to read it.
        schema: What the training graph went through, for a further one.

    Raises:
        DtypeError: If it is none of the forms.
        DataError: If it cannot be used.
    """
    if _are_frames(value):
        return _read_frames(value, reading, schema)
    graph = _without_labels(_read_plain(value, reading))
    if isinstance(schema, ArrayEncoder):
        return Known(encoded(graph, schema), schema)
    if schema is None and reading.standardise and not isinstance(value, NodeGraph):
        found, encoder = standardised(graph)
        assert isinstance(found, NodeGraph)
        return Known(found, encoder)
    return Known(graph, schema)


def labels_of(value: Any, reading: Reading) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return which nodes of a graph have labels, and these.

    Raises:
        DataError: If none has one, or the column or attribute is not there.
    """
    raw = _raw_labels(value, reading)
    if raw is None:
        raise DataError(
            "Expected labels, as 'y' or in the graph: 'y' of a PyG Data, the column or attribute "
            "named label= of data frames and NetworkX graphs (got none)."
        )
    known: Any
    if raw.dtype.kind == "O":
        known = np.array([value is not None and value == value for value in raw.reshape(-1)])
        raw = raw.reshape(-1)
    elif raw.dtype.kind == "f":
        known = ~np.isnan(raw.reshape(len(raw), -1)).all(1)
    elif raw.dtype.kind in "iu":
        known = (raw.reshape(len(raw), -1) >= 0).all(1)
    else:
        known = np.array([bool(str(value).strip()) for value in raw])
    if not known.any():
        raise DataError("Expected labels in the graph (got none). Fill in the known ones.")
    values = raw[known]
    if values.dtype.kind == "O":
        values = np.array(values.tolist())
    return np.flatnonzero(known), values


def node_rows(graph: NodeGraph, nodes: Any, what: str = "X") -> Tensor:
    """Return the rows of nodes given by index, or by identifier where the graph has any.

    Raises:
        ShapeError: If they are not one column.
        DataError: For a node there is not.
    """
    given = np.asarray(nodes.detach().cpu() if isinstance(nodes, Tensor) else nodes)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.ndim != 1:
        raise ShapeError(
            f"Expected '{what}' to be nodes, one index or identifier each (got shape "
            f"{given.shape}). Features of nodes belong into the graph: pass graph= and np.arange."
        )
    return torch.from_numpy(_rows_of(graph, given, what))


def pair_rows(graph: NodeGraph, pairs: Any) -> Tensor:
    """Return pairs of nodes as rows ``(2, P)``.

    Raises:
        ShapeError: If they are not two columns.
        DataError: For a node there is not.
    """
    given = np.asarray(pairs.detach().cpu() if isinstance(pairs, Tensor) else pairs)
    if given.ndim != 2 or given.shape[1] != 2:
        raise ShapeError(f"Expected 'X' to be pairs of nodes, (P, 2) (got shape {given.shape}).")
    ends = [_rows_of(graph, given[:, end], "X") for end in (0, 1)]
    return torch.from_numpy(np.stack(ends))


def read_graphs(values: Any, reading: Reading, encoder: ArrayEncoder | None = None) -> GraphSet:
    """Return a set of graphs of any form, without labels.

    Raises:
        DtypeError: If it is no sequence of graphs.
        DataError: If there is none, or one cannot be used.
    """
    if isinstance(values, GraphSet):
        values = list(values.graphs)
    if isinstance(values, str | Data | NodeGraph) or not isinstance(values, Iterable):
        raise DtypeError(
            "Expected 'X' to be a sequence of graphs, each "
            f"{FORMS}, or a SMILES (got {type(values).__name__}). Put a single one into a list."
        )
    members = [_member(value, reading, place) for place, value in enumerate(values)]
    if not members:
        raise DataError("Expected at least one graph in 'X' (got none).")
    found = from_pyg_list(members, name="graphs", **reading.options)
    return found if encoder is None else standardised_set(found, encoder)


def standardised_set(data: GraphSet, encoder: ArrayEncoder) -> GraphSet:
    """Return a set of graphs whose features went through an encoder."""
    graphs = []
    for graph in data.graphs:
        graphs.append(copy(graph))
        graphs[-1].x = encoder.encode(graph.x)
    return replace(data, graphs=graphs)


def graph_labels(values: Any) -> NDArray[Any]:
    """Return the labels that PyG graphs of a set carry.

    Raises:
        DataError: If one carries none.
    """
    found = []
    graphs = values.graphs if isinstance(values, GraphSet) else values
    for place, graph in enumerate(graphs):
        y = graph.y if isinstance(graph, Data) else None
        if y is None:
            raise DataError(
                f"Expected labels, as 'y' or in every graph's own y (graph {place} has none)."
            )
        found.append(np.asarray(torch.as_tensor(y).detach().cpu()).reshape(-1))
    labels = np.stack(found)
    return labels[:, 0] if labels.shape[1] == 1 else labels


# One graph ------------------------------------------------------------------------------------


def _read_plain(value: Any, reading: Reading) -> NodeGraph:
    """Return a graph that is no pair of data frames."""
    if isinstance(value, NodeGraph):
        return value
    options: ReadOptions = {**reading.options, "allow_singletons": True}
    if isinstance(value, Data):
        return from_pyg(_bare(value), name="graph", **options)
    if _is_networkx(value):
        labels = {*reading.labels, *LABEL_NAMES}
        features = [name for name in _features_of(value) if name not in labels]
        return from_networkx(value, features=features, name="graph", **options)
    if _is_pair_of(value):
        return from_pyg(_from_arrays(*value), name="graph", **options)
    raise DtypeError(f"Expected {FORMS} (got {type(value).__name__}).")


def _bare(data: Data) -> Data:
    """Return what a method reads of a graph: no labels, no masks, no positions."""
    kept = ("x", "edge_index", "edge_weight", "edge_attr", "node_type", "edge_type")
    bare = Data(**{name: data[name] for name in kept if data.get(name) is not None})
    bare.num_nodes = data.num_nodes
    return bare


def _from_arrays(x: Any, edges: Any) -> Data:
    """Return the graph of features, or a number of nodes, and edges in either form."""
    features = None if x is None or isinstance(x, int) else _tensor(x)
    count = x if isinstance(x, int) else None if features is None else features.size(0)
    weight: NDArray[Any] | None = None
    square = not isinstance(edges, Tensor) and getattr(edges, "ndim", 0) == 2
    if issparse(edges) or (square and edges.shape[0] == edges.shape[1] != 2):
        matrix: Any = coo_array(edges)
        ends, values = np.stack([matrix.row, matrix.col]).astype(np.int64), matrix.data
        count = count or edges.shape[0]
        if edges.shape != (count, count):
            raise ShapeError(
                f"Expected a matrix of {count} by {count}, a row per node (got {edges.shape})."
            )
        weight = None if (values == 1).all() else values
        index = torch.from_numpy(ends)
    else:
        index = _tensor(edges)
        if index.dim() == 2 and index.size(0) != 2 and index.size(1) == 2:
            raise ShapeError(
                f"Expected 'edge_index' of shape (2, E) (got {tuple(index.shape)}). Transpose it."
            )
    graph = Data(edge_index=index, num_nodes=count)
    if features is not None:
        graph.x = features
    if weight is not None:
        graph.edge_weight = torch.from_numpy(np.asarray(weight))
    return graph


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if issparse(values):
        matrix: Any = values
        rows = matrix.tocsr()  # words of a text, say: they stay sparse
        pointer, column = torch.from_numpy(rows.indptr), torch.from_numpy(rows.indices)
        numbers = torch.from_numpy(rows.data.astype(np.float32))
        return sparse_features(pointer, column, numbers, rows.shape)
    found = np.asarray(values)
    if found.dtype.kind not in "biuf":
        raise DtypeError(f"Expected arrays of numbers (got {found.dtype}).")
    return torch.from_numpy(np.ascontiguousarray(found))


def _without_labels(graph: NodeGraph) -> NodeGraph:
    bare = copy(graph.graph)
    bare.y = torch.full((int(bare.num_nodes or 0),), -1)
    notes = tuple(note for note in graph.notes if "without a label" not in note)
    return replace(graph, graph=bare, class_names=(), targets=CLASSES, notes=notes)


def _raw_labels(value: Any, reading: Reading) -> NDArray[Any] | None:
    if isinstance(value, NodeGraph):
        return _record_labels(value)
    if isinstance(value, Data):
        y = value.get("y")
        return None if y is None else np.asarray(torch.as_tensor(y).detach().cpu())
    if _are_frames(value) and reading.labels:
        _require_column(value[0], reading.labels)
        columns = [np.asarray(value[0][name]) for name in reading.labels]
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    if _is_networkx(value):
        known = {key for _, own in value.nodes(data=True) for key in own}
        names = reading.labels or tuple(name for name in LABEL_NAMES if name in known)
        if names and names[0] in known:
            given = [own.get(names[0]) for _, own in value.nodes(data=True)]
            return np.array([*given, None], dtype=object)[:-1]
    return None


def _record_labels(value: NodeGraph) -> NDArray[Any]:
    y = value.graph.y
    if value.targets.kind != "classes" or not value.class_names:
        return np.asarray(y)
    names = np.array([*value.class_names, ""])
    named: NDArray[Any] = names[torch.where(labelled(y), y, len(names) - 1).numpy()]
    return named


def _rows_of(graph: NodeGraph, given: NDArray[Any], what: str) -> NDArray[np.int64]:
    count = int(graph.graph.num_nodes or 0)
    if graph.node_ids is not None:
        index = {name: row for row, name in enumerate(graph.node_ids)}
        names = [_name(value) for value in given.tolist()]
        for name in names:
            if name not in index:
                raise DataError(
                    f"Expected identifiers of nodes in '{what}' (got {name!r}, which no node has)."
                )
        return np.array([index[name] for name in names], dtype=np.int64)
    if given.dtype.kind == "b":
        raise DtypeError(
            f"Expected node indices in '{what}' (got a mask). Use np.flatnonzero(mask)."
        )
    if given.dtype.kind not in "iu":
        whole = given.dtype.kind == "f" and bool((given == np.floor(given)).all())
        if not whole:
            raise DtypeError(
                f"Expected node indices 0 to {count - 1} in '{what}' (got {given.dtype}). Graphs "
                "have identifiers of their own where they come from tables or NetworkX."
            )
    rows = given.astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < count:
        raise DataError(
            f"Expected node indices 0 to {count - 1} in '{what}' (got {rows.min()} to "
            f"{rows.max()})."
        )
    return rows


def _name(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value == value // 1 else str(value)


# Data frames ----------------------------------------------------------------------------------


def _read_frames(value: Any, reading: Reading, schema: Schema | None) -> Known:
    nodes, edges = (
        Table.from_frame(frame, name) for frame, name in zip(value, ("nodes", "edges"), strict=True)
    )
    labels = [name for name in reading.labels if name in nodes.columns]
    policy, directed = reading.options["edge_columns"], reading.options["directed"]
    if schema is None:
        _require_column(value[0], reading.labels)
        graph, encoder = read_node_table(
            nodes, edges, label=None, drop=labels, edge_columns=policy, directed=directed
        )
        return Known(graph, encoder)
    if not isinstance(schema, ColumnEncoder):
        raise DataError(
            "Expected a graph of the form the estimator was fitted to (got data frames)."
        )
    graph = encode_new_graph(nodes, edges, schema, edge_columns=policy, directed=directed)
    return Known(graph, schema)


def _require_column(frame: Any, names: Sequence[str]) -> None:
    for name in names:
        if name not in frame.columns:
            raise DataError(
                f"Expected the label column {name!r} among the nodes. "
                + nearest(name, map(str, frame.columns))
            )


def _are_frames(value: Any) -> bool:
    return _is_pair_of(value) and all(hasattr(p, "columns") and hasattr(p, "iloc") for p in value)


def _is_pair_of(value: Any) -> bool:
    """Return whether a value is (features, edges) or (nodes, edges)."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    edges = value[1]
    return issparse(edges) or hasattr(edges, "columns") or getattr(edges, "ndim", 0) == 2


# NetworkX -------------------------------------------------------------------------------------


def _is_networkx(value: Any) -> bool:
    return callable(getattr(value, "is_directed", None)) and hasattr(value, "adj")


def _features_of(graph: Any) -> list[str]:
    """Return the attributes that every node has and that are numbers, in order; or ``x`` alone."""
    nodes = [own for _, own in graph.nodes(data=True)]
    if not nodes:
        raise DataError("Expected a graph with nodes (got none).")
    names = [name for name in nodes[0] if all(_is_number(own.get(name)) for own in nodes)]
    return ["x"] if "x" in names else names


def _is_number(value: Any) -> bool:
    if value is None or isinstance(value, str):
        return False
    return np.asarray(value).dtype.kind in "biuf"


# Sets of graphs -------------------------------------------------------------------------------


def _member(value: Any, reading: Reading, place: int) -> Data:
    """Return one graph of a set as a PyG graph without labels."""
    if isinstance(value, str):
        return _molecule(value, reading, place)
    if isinstance(value, Data):
        return _bare(value)
    if _is_networkx(value):
        return _without_y(_read_plain(value, reading).graph)
    if _are_frames(value):
        raise ConfigError(
            f"Expected one form for all graphs of a set (got data frames as graph {place}): words "
            "of different graphs need common columns. Give features as arrays."
        )
    if _is_pair_of(value):
        return _from_arrays(*value)
    raise DtypeError(
        f"Expected {FORMS}, or a SMILES, as graph {place} (got {type(value).__name__})."
    )


def _without_y(graph: Data) -> Data:
    return _bare(graph)


def _molecule(text: str, reading: Reading, place: int) -> Data:
    from geof.data.molecules import molecule_graph

    graph = molecule_graph(text.strip())
    if graph is None:
        raise DataError(
            f"Expected a SMILES that can be parsed (got {text!r} as graph {place}). Correct it or "
            "leave it out."
        )
    if reading.options["edge_columns"] == "refuse":  # as tables of molecules are read
        del graph.edge_attr
    return graph
