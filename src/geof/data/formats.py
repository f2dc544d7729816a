"""Graphs from ``.npz`` files, NetworkX and PyG, all brought to the one form of ``records``.

Edges become undirected (unless ``directed``), sorted, without repeats and self-loops; features stay
as given, in float32; labels become class indices in sorted order, -1 where there is none, or the
numbers of other targets. Notes count what changed.

Every reader takes the same :class:`ReadOptions`.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from geof.data.records import (
    CarriedByEdges,
    EdgeSizes,
    Features,
    GraphSet,
    NodeGraph,
    ReadOptions,
    carried_to,
    change_notes,
    checked_carried,
    directed_edges,
    edge_columns_note,
    edge_inputs,
    finite_features,
    graph_set,
    label_text,
    node_graph,
    read_labels,
    sparse_features,
    undirected_edges,
)
from geof.data.targets import TargetFacts
from geof.errors import ConfigError, DataError, DtypeError, ShapeError, listed, nearest
from geof.io import write_atomically

_MATRIX_PARTS = ("data", "indices", "indptr", "shape")
_NPZ_KEYS = {"x", "edge_index", "y", "labels", "class_names", "node_ids", "node_names"}
_NPZ_KEYS |= {"target_kind", "target_names", "directed", "feature_names"}
_NPZ_KEYS |= {f"{matrix}_{part}" for matrix in ("attr", "adj") for part in _MATRIX_PARTS}
_EDGE_KEYS = {"edge_attr", "edge_weight"}
_TYPE_KEYS = ("node_type", "edge_type")
_NPZ_KEYS |= {*_EDGE_KEYS, "edge_categories"}


def from_npz(
    path: str | PathLike[str], *, aside: Sequence[str] = (), **options: Unpack[ReadOptions]
) -> NodeGraph:
    """Read one graph from an ``.npz`` file of plain arrays; nothing is ever unpickled.

    The file has the keys

    * ``x``, ``(n, d)``, or a CSR matrix in ``attr_data``, ``attr_indices``, ``attr_indptr`` and
      ``attr_shape``, which stays sparse;
    * ``edge_index``, ``(2, E)``, or a CSR matrix in ``adj_*`` with no value but one;
    * optionally ``y`` or ``labels``, ``(n,)``: whole numbers (-1: none) or strings; floats or
      several columns ``(n, T)`` for other targets, NaN where one is missing;
    * optionally ``class_names`` of the classes 0, 1, ... in ``y``; ``node_ids``; ``feature_names``
      of the columns of ``x``, which reports show; what :func:`to_npz` writes of other targets and
      of direction;
    * with ``edge_columns="use"``: ``edge_weight``, ``(E,)`` (or the values of ``adj_*``), and
      ``edge_attr``, ``(E, columns)``, whole numbers for categories and others for numbers. Columns
      of both kinds are floats, with the sizes of the categories, which come first, in
      ``edge_categories``.

    Args:
        path: The file.
        aside: Keys of arrays ``(n,)`` that a split goes by.
        **options: See :class:`ReadOptions`.

    Raises:
        DataError: If the file is incomplete, lacks a key, or its values cannot be used.
    """
    return _graph_of(*_load_npz(path, aside), path, aside, options)


def from_arrays(
    folder: str | PathLike[str], *, aside: Sequence[str] = (), **options: Unpack[ReadOptions]
) -> NodeGraph:
    """Read one graph from a folder of ``.npy`` files named after the keys of :func:`from_npz`.

    ``x.npy`` and ``edge_index.npy`` are needed; ``y.npy``, ``node_ids.npy`` and the others are read
    where they are there. The files are mapped, so float32 features in ``x.npy`` are never copied:
    only the rows that are worked on have to fit into memory. Keep the files as they are meanwhile.

    Args:
        folder: The folder.
        aside: Names of arrays ``(n,)`` that a split goes by.
        **options: See :class:`ReadOptions`.

    Raises:
        DataError: If a file is missing, shorter than its header says, or holds what cannot be used.
    """
    return _graph_of(*_map_arrays(Path(folder), aside), folder, aside, options)


def _graph_of(
    arrays: dict[str, NDArray[Any]],
    unused: set[str],
    path: str | PathLike[str],
    aside: Sequence[str],
    options: ReadOptions,
) -> NodeGraph:
    """Return the graph that arrays under known keys describe."""
    _refuse_types({key: arrays.pop(key) for key in _TYPE_KEYS if key in arrays}, f"'{path}'")
    if "target_kind" in arrays:
        options.setdefault("target_kind", str(arrays["target_kind"]))  # type: ignore[typeddict-item]
    there = [*arrays, *unused]
    x = finite_features(_npz_features(arrays, path, there), f"'{path}'")
    edge_index, weights = _npz_edges(arrays, path, there)
    edge_keys = {*({"adj_data"} if weights is not None else ()), *(_EDGE_KEYS & {*arrays})}
    notes = edge_columns_note(edge_keys, f"'{path}'", options)
    if unused:
        notes.append(f"Keys not used: {listed(sorted(unused))}.")
    carried = None
    if edge_keys and options.get("edge_columns") == "use":
        carried = checked_carried(
            arrays.get("edge_weight", weights),
            arrays.get("edge_attr"),
            edge_index.size(1),
            f"'{path}'",
            tuple(_list_under(arrays, "edge_categories").tolist()),
        )
    labels = arrays.get("y", arrays.get("labels"))
    classes = options.get("target_kind") in (None, "classes")
    names = tuple(map(str, _list_under(arrays, "class_names"))) if classes else ()
    if labels is not None and names:
        labels = _named_labels(labels, names, path)
    target_names = tuple(map(str, _list_under(arrays, "target_names")))
    found = read_labels(labels, x.size(0), options, names, target_names)
    key = next((key for key in ("node_ids", "node_names") if key in arrays), None)
    node_ids = None if key is None else tuple(map(str, _list_under(arrays, key)))
    graph = node_graph(
        Path(path).stem,
        x,
        edge_index,
        found.y,
        found.class_names,
        node_ids,
        notes + found.notes,
        keep_direction=options.get("directed", False) or "directed" in arrays,
        targets=found.facts,
        carried=carried,
    )
    beside = {key: _column(arrays[key], x.size(0), key) for key in aside}
    called = arrays.get("feature_names")
    features = None if called is None else _column(called, x.size(1), "feature_names")
    return replace(graph, aside=beside, feature_names=features)


def to_npz(graph: NodeGraph, path: str | PathLike[str]) -> None:
    """Write a graph with the keys :func:`from_npz` reads, whole or not at all."""
    x, edge_index, y = graph.graph.x, graph.graph.edge_index, graph.graph.y
    arrays: dict[str, Any] = {"edge_index": edge_index.numpy(), "y": y.numpy()}
    if graph.targets.kind != "classes":
        arrays |= {"target_kind": graph.targets.kind, "target_names": list(graph.targets.names)}
    if graph.directed:
        arrays["directed"] = True
    if x.layout == torch.sparse_csr:
        parts = x.values(), x.col_indices(), x.crow_indices(), torch.tensor(x.shape)
        arrays |= {f"attr_{k}": v.numpy() for k, v in zip(_MATRIX_PARTS, parts, strict=True)}
    else:
        arrays["x"] = x.numpy()
    for name in sorted(_EDGE_KEYS & {*edge_inputs(graph.graph)}):
        arrays[name] = graph.graph[name].numpy()
    if graph.edge_sizes is not None and graph.edge_sizes.categories:
        arrays["edge_categories"] = np.array(graph.edge_sizes.categories)
    class_names = graph.class_names if graph.targets.kind == "classes" else None
    texts = {"class_names": class_names, "node_ids": graph.node_ids}
    for key, names in (texts | {"feature_names": graph.feature_names}).items():
        if names is not None:
            arrays[key] = np.array(names, dtype=str)
            if arrays[key].tolist() != list(names):
                raise DataError(f"Expected '{key}' without a null character at the end of a name.")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(Path(path), buffer.getvalue())


def from_networkx(
    graph: Any,
    *,
    features: Sequence[str],
    label: str | None = None,
    name: str = "networkx",
    **options: Unpack[ReadOptions],
) -> NodeGraph:
    """Read a NetworkX graph; the text of a node's name becomes its identifier.

    Args:
        graph: Any NetworkX graph. A directed one is taken as undirected unless ``directed``.
        features: Node attributes in order: numbers, booleans or vectors of numbers. Without any,
            every node gets the constant 1.
        label: The node attribute to predict, text or a number; a node may lack it.
        name: A name for the dataset.
        **options: See :class:`ReadOptions`.

    Raises:
        DataError: If an attribute is missing or not numeric, or two names have the same text.
    """
    attributes = dict(graph.nodes(data=True))
    index = {node: i for i, node in enumerate(attributes)}
    known = {key for values in attributes.values() for key in values}
    wanted = {*features, label} if label else {*features}
    for attribute in sorted(wanted - known):
        hint = nearest(attribute, map(str, known))
        raise DataError(f"Expected the node attribute {attribute!r} in the graph. {hint}")
    edges = list(graph.edges(data=True))
    edge_keys = {str(key) for *_, values in edges for key in values}
    if options.get("edge_columns") == "use":
        raise ConfigError(
            "Expected edge_columns='refuse' or 'ignore' for a NetworkX graph (got 'use'). Convert "
            "it with torch_geometric.utils.from_networkx and read it with from_pyg."
        )
    notes = edge_columns_note(edge_keys, "the NetworkX graph", options)
    if known - wanted:
        notes.append(f"Node attributes not used: {listed(sorted(map(str, known - wanted)))}.")
    pairs = [(index[a], index[b]) for a, b, _ in edges]
    edge_index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
    parts = [_attribute(attributes, feature) for feature in features]
    x = np.concatenate(parts, axis=1) if parts else _constant_feature(len(index), notes)
    given = [values.get(label) for values in attributes.values()]
    found = read_labels(_attribute_labels(given) if label else None, len(index), options)
    if found.facts.kind != "classes" and label:
        found = found._replace(facts=TargetFacts(found.facts.kind, (label,)))
    read = node_graph(
        name,
        finite_features(x, "the NetworkX graph"),
        edge_index,
        found.y,
        found.class_names,
        tuple(map(str, index)),
        notes + found.notes,
        directed=graph.is_directed(),
        keep_direction=options.get("directed", False) and graph.is_directed(),
        targets=found.facts,
    )
    called = [
        feature if part.shape[1] == 1 else f"{feature}[{place}]"
        for feature, part in zip(features, parts, strict=True)
        for place in range(part.shape[1])
    ]
    return replace(read, feature_names=tuple(called) or None)


def from_pyg(
    data: Data,
    *,
    name: str = "pyg",
    node_ids: Sequence[str] | None = None,
    **options: Unpack[ReadOptions],
) -> NodeGraph:
    """Read one PyG graph for node classification or link prediction.

    Args:
        data: A homogeneous graph with ``edge_index`` and, where known, ``x`` and ``y`` (whole
            numbers, -1: none; floats or several columns for other targets, NaN: none). Without
            ``x`` every node gets the constant 1. With ``edge_columns="use"`` also ``edge_weight``
            and ``edge_attr``, whole numbers for categories and floats for numbers.
        name: A name for the dataset.
        node_ids: Identifiers in node order.
        **options: See :class:`ReadOptions`.
    """
    x, edge_index, labels, notes = _pyg_parts(data, "the graph", options)
    found = read_labels(labels, x.size(0), options)
    return node_graph(
        name,
        x,
        edge_index,
        found.y,
        found.class_names,
        None if node_ids is None else tuple(node_ids),
        notes + found.notes,
        keep_direction=options.get("directed", False),
        targets=found.facts,
        carried=_pyg_carried(data, "the graph", options),
    )


def from_pyg_list(
    graphs: Iterable[Data],
    *,
    name: str = "pyg",
    graph_ids: Sequence[str] | None = None,
    **options: Unpack[ReadOptions],
) -> GraphSet:
    """Read PyG graphs; ``y`` holds one label, or equally many targets in each, or is absent.

    Args:
        graphs: Homogeneous graphs with equally many features.
        name: A name for the dataset.
        graph_ids: Identifiers in order.
        **options: See :class:`ReadOptions`.
    """
    members: list[Data] = []
    labels: list[Any] = []
    changes: Counter[str] = Counter()
    notes: dict[str, None] = {}
    sizes: list[EdgeSizes | None] = []
    for i, data in enumerate(graphs):
        x, edge_index, label, said = _pyg_parts(data, f"graph {i}", options)
        normalise = directed_edges if options.get("directed", False) else undirected_edges
        given, (edge_index, changed) = edge_index, normalise(edge_index, x.size(0))
        changes += changed
        notes |= dict.fromkeys(said)
        members.append(Data(x=x.to_dense(), edge_index=edge_index))
        carried = _pyg_carried(data, f"graph {i}", options)
        sizes.append(None if carried is None else carried.sizes)
        if carried is not None:
            members[-1].update(
                carried_to(
                    edge_index,
                    carried,
                    given,
                    x.size(0),
                    keep_direction=options.get("directed", False),
                    where=f"graph {i}",
                )
            )
        labels.append(None if label is None else label.reshape(-1))
    found = read_labels(_stacked_labels(labels), len(members), options)
    ids = None if graph_ids is None else tuple(graph_ids)
    return graph_set(
        name,
        members,
        found.y,
        found.class_names,
        ids,
        [*notes, *change_notes(changes), *found.notes],
        found.facts,
        directed=options.get("directed", False),
        edge_sizes=_common_sizes(members, sizes),
    )


def _stacked_labels(labels: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
    """Return the labels of all graphs, ``(G,)`` or ``(G, T)``; missing ones are -1 or NaN."""
    width = max(next((label.size for label in labels if label is not None), 1), 1)
    for i, label in enumerate(labels):
        if label is not None and label.size != width:
            raise ShapeError(
                f"Expected {width} labels or targets, as in every graph, in 'y' of graph {i} (got "
                f"{label.size})."
            )
    real = width > 1 or any(label is not None and label.dtype.kind == "f" for label in labels)
    empty = np.full(width, np.nan if real else -1)
    rows = np.array([empty if label is None else label for label in labels])
    return rows.reshape(-1) if width == 1 else rows


def _attribute_labels(values: Sequence[Any]) -> NDArray[Any]:
    """Return the labels of NetworkX nodes: floats if all are numbers and some are not whole."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    present = sum(value is not None for value in values)
    if len(numbers) == present and any(isinstance(v, float) and v != v // 1 for v in numbers):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.array([label_text(value) for value in values], dtype=str)


def _column(array: NDArray[Any], count: int, key: str) -> tuple[str, ...]:
    if array.shape != (count,):
        raise ShapeError(f"Expected {count} entries under '{key}' (got shape {array.shape}).")
    return tuple(map(str, array.tolist()))


def _list_under(arrays: Mapping[str, NDArray[Any]], key: str) -> NDArray[Any]:
    """Return an array of names or sizes, an empty one where there is none."""
    array = arrays.get(key, np.empty(0, np.int64))
    if array.ndim != 1:
        raise ShapeError(f"Expected a list under '{key}' (got shape {array.shape}).")
    return array


def _refuse_types(types: Mapping[str, Any], where: str) -> None:
    """Raise ``DataError`` for several types of nodes or edges, with what to do about them."""
    remedies = {
        "node_type": "Put the type into 'x' as one 0/1 column per type, fill what a type lacks with"
        " zeros, and leave 'node_type' out",
        "edge_type": "Keep one type of edges, or give the type as an edge attribute where the model"
        " uses those, and leave 'edge_type' out",
    }
    for key, values in types.items():
        count = len(np.unique(np.asarray(values)))
        if count > 1:
            raise DataError(
                f"Expected nodes and edges of one type in {where} (got {count} values of "
                f"'{key}'): heterogeneous graphs are not supported. {remedies[key]}."
            )


def _pyg_carried(data: Data, where: str, options: ReadOptions) -> CarriedByEdges | None:
    """Return what the edges carry, if it is to be used."""
    present = {name: data[name] for name in _EDGE_KEYS if name in data and data[name] is not None}
    if not present or options.get("edge_columns") != "use":
        return None
    weight, attributes = present.get("edge_weight"), present.get("edge_attr")
    return checked_carried(weight, attributes, data.edge_index.size(1), where)


def _common_sizes(graphs: Sequence[Data], sizes: Sequence[EdgeSizes | None]) -> EdgeSizes | None:
    """Return the sizes that fit all graphs of a set.

    Raises:
        DataError: If the edges of some carry other things than those of others.
    """
    kinds = [
        None if size is None else (len(size.categories), size.channels, "edge_weight" in graph)
        for graph, size in zip(graphs, sizes, strict=True)
    ]
    for i, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise DataError(
                "Expected the edges of all graphs to carry the same kinds of things: categories, "
                f"numbers, a weight (got {kinds[0]} in graph 0, {kind} in graph {i})."
            )
    known = [size for size in sizes if size is not None]
    if not known:
        return None
    columns = zip(*(size.categories for size in known), strict=True)
    return EdgeSizes(tuple(map(max, columns)), known[0].channels)


def _constant_feature(num_nodes: int, notes: list[str]) -> Tensor:
    notes.append("No features given: every node has the constant 1.")
    return torch.ones(num_nodes, 1)


def _attribute(attributes: Mapping[Any, Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    rows = []
    for node, values in attributes.items():
        value = values.get(name)
        try:
            if value is None or isinstance(value, str):
                raise TypeError
            rows.append(np.atleast_1d(np.asarray(value, dtype=np.float64)).reshape(-1))
        except (TypeError, ValueError):
            raise DataError(
                f"Expected a number or a vector in attribute {name!r} of node {node!r} (got "
                f"{value!r}). For words and missing values write a table: see read_node_table."
            ) from None
        if len(rows[-1]) != len(rows[0]):
            raise ShapeError(
                f"Expected {len(rows[0])} numbers in attribute {name!r} of node {node!r} (got "
                f"{len(rows[-1])})."
            )
    return np.stack(rows)


def _pyg_parts(
    data: Data, where: str, options: ReadOptions
) -> tuple[Tensor, Tensor, NDArray[Any] | None, list[str]]:
    if isinstance(data, HeteroData):
        raise DtypeError(
            f"Expected a homogeneous PyG Data as {where} (got HeteroData with "
            f"{len(data.node_types)} types of nodes and {len(data.edge_types)} of edges). Give all "
            "nodes features of one width with their type among them as 0/1 columns, take "
            "data.to_homogeneous(), and delete its 'node_type' and 'edge_type'; or keep one type "
            "of nodes and edges."
        )
    if not isinstance(data, Data):
        raise DtypeError(f"Expected a homogeneous PyG Data as {where} (got {type(data).__name__}).")
    _refuse_types({key: data[key] for key in _TYPE_KEYS if key in data}, where)
    present = {key for key in data.keys() if data[key] is not None}  # noqa: SIM118
    if "edge_index" not in present:
        raise DataError(f"Expected 'edge_index' in {where}. " + nearest("edge_index", present))
    notes = edge_columns_note(_EDGE_KEYS & present, where, options)
    if unused := sorted(present - _EDGE_KEYS - {"x", "edge_index", "y", "num_nodes"}):
        notes.append(f"Attributes not used: {listed(unused)}.")
    x = data.x if "x" in present else _constant_feature(data.num_nodes or 0, notes)
    labels = torch.as_tensor(data.y).detach().cpu().numpy() if "y" in present else None
    return finite_features(x, where), data.edge_index.cpu(), labels, notes


def _load_npz(
    path: str | PathLike[str], aside: Sequence[str] = ()
) -> tuple[dict[str, NDArray[Any]], set[str]]:
    """Return the arrays under known keys, and the other keys."""
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as archive:
            for key in set(aside) - set(archive.files):
                raise DataError(f"Expected the key '{key}' in '{path}'. {nearest(key, archive)}")
            known = (_NPZ_KEYS | {*aside, *_TYPE_KEYS}) & set(archive.files)
            arrays = {key: _plain_array(archive, key, path) for key in sorted(known)}
            return arrays, set(archive.files) - known
    except DataError:
        raise
    except Exception as error:  # zip and npy each have several ways of being damaged
        raise DataError(
            f"Expected a whole .npz file of plain arrays at '{path}' (got: {error}). Check the "
            "path, or copy the file again."
        ) from error


def _map_arrays(
    folder: Path, aside: Sequence[str] = ()
) -> tuple[dict[str, NDArray[Any]], set[str]]:
    """Return the mapped files with known names, and the other names."""
    files = {file.stem: file for file in sorted(folder.glob("*.npy"))}
    for key in [key for key in ("x", "edge_index", *aside) if key not in files]:
        raise DataError(
            f"Expected a file '{key}.npy' in the folder '{folder}' (has "
            f"{listed(sorted(files)) or 'no .npy file'}). Write it with numpy.save."
        )
    known = (_NPZ_KEYS | {*aside, *_TYPE_KEYS}) & set(files)
    return {key: _mapped(files[key]) for key in sorted(known)}, set(files) - known


def _mapped(path: Path) -> NDArray[Any]:
    """Map one file; what is written to the array stays out of the file."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception as error:  # a header is Python's syntax: the reader's own errors may come
        raise DataError(
            f"Expected a whole .npy file of a plain array at '{path}', as long as its header says "
            f"(got: {error}). Copy the file again, or write it anew with numpy.save."
        ) from error
    return array


def _plain_array(archive: Any, key: str, path: str | PathLike[str]) -> NDArray[Any]:
    """Return one array; objects, which are pickled, are refused by name."""
    try:
        array: NDArray[Any] = archive[key]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise DataError(
            f"Expected plain arrays in '{path}' (got objects under '{key}'). Save numbers or "
            f"strings there, for instance {key}=np.array({key}, dtype=str)."
        ) from error
    return array


def _npz_features(
    arrays: Mapping[str, NDArray[Any]], path: str | PathLike[str], there: Sequence[str]
) -> Features:
    if "x" in arrays:
        return arrays["x"]
    matrix = _npz_matrix(arrays, "attr", "x", path, there)
    row_pointer, column = torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices)
    value = torch.from_numpy(matrix.data.astype(np.float32))
    return sparse_features(row_pointer, column, value, matrix.shape)


def _npz_edges(
    arrays: Mapping[str, NDArray[Any]], path: str | PathLike[str], there: Sequence[str]
) -> tuple[Tensor, NDArray[Any] | None]:
    """Return the edges and the weights of an adjacency matrix, if they are not all one."""
    if "edge_index" in arrays:
        if arrays["edge_index"].dtype.kind not in "iu":
            kind = arrays["edge_index"].dtype
            raise DtypeError(f"Expected whole numbers in 'edge_index' of '{path}' (got {kind}).")
        if arrays["edge_index"].shape[:1] != (2,) or arrays["edge_index"].ndim != 2:
            shape = arrays["edge_index"].shape
            raise ShapeError(f"Expected 'edge_index' of shape (2, E) in '{path}' (got {shape}).")
        return torch.from_numpy(arrays["edge_index"].astype(np.int64)), None
    matrix = _npz_matrix(arrays, "adj", "edge_index", path, there).tocoo()
    weights = matrix.data if (matrix.data != 1).any() else None
    return torch.from_numpy(np.stack([matrix.row, matrix.col])).long(), weights


def _npz_matrix(
    arrays: Mapping[str, NDArray[Any]],
    matrix: str,
    instead: str,
    path: str | PathLike[str],
    there: Sequence[str],
) -> Any:
    if lacking := [k for p in _MATRIX_PARTS if (k := f"{matrix}_{p}") not in arrays]:
        raise DataError(
            f"Expected '{instead}' or all of '{matrix}_data', '{matrix}_indices', "
            f"'{matrix}_indptr' and '{matrix}_shape' in '{path}' (lacks '{instead}', "
            f"{', '.join(map(repr, lacking))}; has {listed(sorted(there)) or 'nothing'}). Save the "
            f"array under the name '{instead}'."
        )
    data, indices, indptr, shape = (arrays[f"{matrix}_{part}"] for part in _MATRIX_PARTS)
    kinds = "".join(array.dtype.kind for array in (data, indices, indptr, shape))
    if not re.fullmatch("[biuf][iu]{3}", kinds):
        raise DtypeError(
            f"Expected real numbers in '{matrix}_data' and whole ones in '{matrix}_indices', "
            f"'{matrix}_indptr' and '{matrix}_shape' of '{path}'."
        )
    try:
        result = csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()))
        result.check_format(full_check=True)
        result.sum_duplicates()
    except (ValueError, TypeError) as error:
        raise DataError(
            f"Expected a CSR matrix in '{matrix}_*' of '{path}' (got: {error})."
        ) from error
    return result


def _named_labels(
    labels: NDArray[Any], names: Sequence[str], path: str | PathLike[str]
) -> NDArray[Any]:
    """Replace class indices by the names the file gives them."""
    if labels.dtype.kind not in "iu" or not set(np.unique(labels)) <= {-1, *range(len(names))}:
        raise DataError(
            f"Expected labels that index the {len(names)} 'class_names' of '{path}', -1 for none "
            f"(got {labels.dtype}, {listed(sorted(map(str, np.unique(labels))))})."
        )
    named: NDArray[Any] = np.array([*names, ""])[labels]
    return named
