"""Graphs from ``.npz`` files, NetworkX and PyG, all brought to the one form of ``records``.

Edges become undirected, sorted, without repeats and self-loops; features stay as given, in float32;
labels become class indices in sorted order, -1 where there is none. Notes count what changed.

Every reader takes the same :class:`ReadOptions`.
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor
from torch_geometric.data import Data

from geof.data.cache import content_hash
from geof.data.columns import class_names_of
from geof.data.files import write_atomically
from geof.data.raw_files import undirected
from geof.data.records import GraphSet, NodeGraph
from geof.errors import ConfigError, DataError, DtypeError, ShapeError, nearest

EdgeColumns: TypeAlias = Literal["refuse", "ignore"]
Features: TypeAlias = Tensor | NDArray[Any]

_MATRIX_PARTS = ("data", "indices", "indptr", "shape")
_NPZ_KEYS = {"x", "edge_index", "y", "labels", "class_names", "node_ids", "node_names"}
_NPZ_KEYS |= {f"{matrix}_{part}" for matrix in ("attr", "adj") for part in _MATRIX_PARTS}
_EDGE_KEYS = {"edge_attr", "edge_weight"}


class ReadOptions(TypedDict, total=False):
    """What every reader lets the caller decide.

    Attributes:
        class_names: The classes of an earlier graph; labels must be among them, and their order
            is kept. For prediction; by default the classes are the sorted labels.
        edge_columns: ``"refuse"`` (default) raises on weights and features of edges, which the
            model does not use; ``"ignore"`` drops them and says so in a note.
        allow_singletons: Whether a class may have a single member, which no split can hold
            (default: no).
    """

    class_names: Sequence[str]
    edge_columns: EdgeColumns
    allow_singletons: bool


def from_npz(path: str | PathLike[str], **options: Unpack[ReadOptions]) -> NodeGraph:
    """Read one graph from an ``.npz`` file of plain arrays; nothing is ever unpickled.

    The file has the keys

    * ``x``, ``(n, d)``, or a CSR matrix in ``attr_data``, ``attr_indices``, ``attr_indptr`` and
      ``attr_shape``, which stays sparse;
    * ``edge_index``, ``(2, E)``, or a CSR matrix in ``adj_*`` with no value but one;
    * optionally ``y`` or ``labels``, ``(n,)``: whole numbers (-1: none) or strings;
    * optionally ``class_names`` of the classes 0, 1, ... in ``y``; ``node_ids``.

    Raises:
        DataError: If the file is incomplete, lacks a key, or its values cannot be used.
    """
    arrays, unused = _load_npz(path)
    x = finite_features(_npz_features(arrays, path), f"'{path}'")
    edge_index, edge_keys = _npz_edges(arrays, path)
    notes = edge_columns_note(edge_keys | (_EDGE_KEYS & unused), f"'{path}'", options)
    if unused - _EDGE_KEYS:
        notes.append(f"Keys not used: {', '.join(sorted(unused - _EDGE_KEYS))}.")
    labels = arrays.get("y", arrays.get("labels"))
    names = tuple(map(str, arrays.get("class_names", ())))
    if labels is not None and names:
        labels = _named_labels(labels, names, path)
    y, class_names, said = index_labels(labels, x.size(0), options, names)
    ids = arrays.get("node_ids", arrays.get("node_names"))
    node_ids = None if ids is None else tuple(map(str, ids))
    notes += said
    return node_graph(Path(path).stem, x, edge_index, y, class_names, node_ids, notes)


def to_npz(graph: NodeGraph, path: str | PathLike[str]) -> None:
    """Write a graph with the keys :func:`from_npz` reads, whole or not at all."""
    x, edge_index, y = graph.graph.x, graph.graph.edge_index, graph.graph.y
    arrays: dict[str, Any] = {"edge_index": edge_index.numpy(), "y": y.numpy()}
    if x.layout == torch.sparse_csr:
        parts = x.values(), x.col_indices(), x.crow_indices(), torch.tensor(x.shape)
        arrays |= {f"attr_{k}": v.numpy() for k, v in zip(_MATRIX_PARTS, parts, strict=True)}
    else:
        arrays["x"] = x.numpy()
    for key, names in (("class_names", graph.class_names), ("node_ids", graph.node_ids)):
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
        graph: Any NetworkX graph. A directed one is taken as undirected.
        features: Node attributes in order: numbers, booleans or vectors of numbers. Without any,
            every node gets the constant 1.
        label: The node attribute to predict; a node may lack it.
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
    notes = edge_columns_note(edge_keys, "the NetworkX graph", options)
    if known - wanted:
        notes.append(f"Node attributes not used: {', '.join(sorted(map(str, known - wanted)))}.")
    pairs = [(index[a], index[b]) for a, b, _ in edges]
    edge_index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
    parts = [_attribute(attributes, feature) for feature in features]
    x = np.concatenate(parts, axis=1) if parts else _constant_feature(len(index), notes)
    texts = np.array([_label_text(values.get(label)) for values in attributes.values()], dtype=str)
    y, class_names, said = index_labels(texts if label else None, len(index), options)
    return node_graph(
        name,
        finite_features(x, "the NetworkX graph"),
        edge_index,
        y,
        class_names,
        tuple(map(str, index)),
        notes + said,
        directed=graph.is_directed(),
    )


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
            numbers, -1: none). Without ``x`` every node gets the constant 1.
        name: A name for the dataset.
        node_ids: Identifiers in node order.
        **options: See :class:`ReadOptions`.
    """
    x, edge_index, labels, notes = _pyg_parts(data, "the graph", options)
    y, class_names, said = index_labels(labels, x.size(0), options)
    ids = None if node_ids is None else tuple(node_ids)
    return node_graph(name, x, edge_index, y, class_names, ids, notes + said)


def from_pyg_list(
    graphs: Iterable[Data],
    *,
    name: str = "pyg",
    graph_ids: Sequence[str] | None = None,
    **options: Unpack[ReadOptions],
) -> GraphSet:
    """Read PyG graphs for graph classification; ``y`` holds one label, or is absent.

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
    for i, data in enumerate(graphs):
        x, edge_index, label, said = _pyg_parts(data, f"graph {i}", options)
        if label is not None and label.size != 1:
            raise ShapeError(f"Expected one label in 'y' of graph {i} (got {label.size}).")
        edge_index, changed = undirected_edges(edge_index, x.size(0))
        changes += changed
        notes |= dict.fromkeys(said)
        members.append(Data(x=x.to_dense(), edge_index=edge_index))
        labels.append(-1 if label is None else label.item())
    y, class_names, said = index_labels(np.array(labels), len(members), options)
    ids = None if graph_ids is None else tuple(graph_ids)
    return graph_set(name, members, y, class_names, ids, [*notes, *change_notes(changes), *said])


def node_graph(
    name: str,
    x: Tensor,
    edge_index: Tensor,
    y: Tensor,
    class_names: tuple[str, ...],
    node_ids: tuple[str, ...] | None,
    notes: Sequence[str],
    *,
    directed: bool = True,
) -> NodeGraph:
    """Put a graph together: edges normalised, changes noted, content hashed."""
    _check_ids(node_ids, x.size(0), "node")
    edges, changed = undirected_edges(edge_index, x.size(0), directed=directed)
    graph = Data(x=x, edge_index=edges, y=y)
    digest = _hash_graphs([graph], class_names)
    return NodeGraph(name, graph, class_names, node_ids, (*notes, *change_notes(changed)), digest)


def graph_set(
    name: str,
    graphs: list[Data],
    y: Tensor,
    class_names: tuple[str, ...],
    graph_ids: tuple[str, ...] | None,
    notes: Sequence[str],
) -> GraphSet:
    """Put a set of graphs together; their edges are normalised already."""
    if not graphs:
        raise DataError(f"Expected at least one graph in '{name}' (got none).")
    _check_ids(graph_ids, len(graphs), "graph")
    for i, (graph, label) in enumerate(zip(graphs, y, strict=True)):
        if graph.x.size(1) != graphs[0].x.size(1):
            raise ShapeError(
                f"Expected {graphs[0].x.size(1)} features in every graph (got {graph.x.size(1)} "
                f"in graph {i})."
            )
        graph.y = label.reshape(1)
    digest = _hash_graphs(graphs, class_names)
    return GraphSet(name, graphs, class_names, graph_ids, tuple(notes), digest)


def undirected_edges(
    edge_index: Tensor, num_nodes: int, *, directed: bool = True
) -> tuple[Tensor, Counter[str]]:
    """Return both directions of every edge, sorted and once, and what was changed how often.

    Args:
        edge_index: The edges as given, ``(2, E)``.
        num_nodes: Number of nodes.
        directed: Whether an edge is expected in both directions (PyG), or once (tables).
    """
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ShapeError(f"Expected 'edge_index' of shape (2, E) (got {tuple(edge_index.shape)}).")
    if edge_index.is_floating_point() or edge_index.is_complex():
        raise DtypeError(f"Expected whole numbers in 'edge_index' (got {edge_index.dtype}).")
    ends = edge_index.long().numpy()
    wrong = ((ends < 0) | (ends >= num_nodes)).any(0)
    if wrong.any():
        first = int(wrong.argmax())
        raise DataError(
            f"Expected edges between nodes 0 to {num_nodes - 1} (got "
            f"{tuple(ends[:, first].tolist())} at position {first})."
        )
    kept = ends[:, ends[0] != ends[1]]
    if not directed:
        kept = np.sort(kept, axis=0)
    given = np.unique(kept[0] * num_nodes + kept[1]).size
    both = torch.from_numpy(undirected(kept[0], kept[1], num_nodes)[0])
    changed = Counter({"self-loops removed": ends.shape[1] - kept.shape[1]})
    changed["repeated edges merged"] = kept.shape[1] - given
    if directed:
        changed["edges given in one direction taken as undirected"] = both.size(1) - given
    return both, changed


def change_notes(changed: Mapping[str, int]) -> list[str]:
    """Return a sentence for each kind of change that happened."""
    return [f"{count} {what}." for what, count in changed.items() if count]


def edge_columns_note(names: Iterable[str], where: str, options: ReadOptions) -> list[str]:
    """Refuse weights and features of edges, or note that they were dropped on request."""
    policy = options.get("edge_columns", "refuse")
    if policy not in ("refuse", "ignore"):
        raise ConfigError(
            f"Unknown edge_columns={policy!r}. " + nearest(policy, ("refuse", "ignore"))
        )
    listed = ", ".join(map(repr, sorted(names)))
    if listed and policy == "refuse":
        raise DataError(
            f"Expected edges without weights or features in {where} (got {listed}): the model does "
            "not use them yet. Drop them explicitly with edge_columns='ignore'."
        )
    return [f"Edge columns ignored on request: {listed}."] if listed else []


def index_labels(
    labels: NDArray[Any] | None, count: int, options: ReadOptions, names: Sequence[str] = ()
) -> tuple[Tensor, tuple[str, ...], list[str]]:
    """Return class indices, class names and notes.

    Args:
        labels: Strings (blank: none), whole numbers (-1: none) or floats (NaN: none).
        count: How many there must be.
        options: The caller's ``class_names`` and ``allow_singletons``.
        names: The classes in the source's own order, where it says so.
    """
    known = tuple(options.get("class_names", ()))
    if labels is None:
        return torch.full((count,), -1), known, []
    if labels.shape not in ((count,), (count, 1)):
        raise ShapeError(f"Expected {count} labels (got shape {labels.shape}).")
    values, inverse = np.unique(labels.reshape(-1), return_inverse=True)
    texts = [_label_text(value) for value in values.tolist()]
    names = known or tuple(names) or class_names_of(texts)
    if not known and len(names) == 1 and -1 in values.tolist():
        raise DataError(
            f"Expected classes 0, 1, ... with -1 for unlabelled (got only -1 and {names[0]}). If "
            "-1 is a class, give the labels as 0 and 1."
        )
    for text in texts:
        if text and text not in names:
            raise DataError(f"Expected a known class (got {text!r}). " + nearest(text, names))
    index = {name: i for i, name in enumerate(names)}
    codes = torch.tensor([index.get(text, -1) for text in texts], dtype=torch.long)
    y = codes[torch.from_numpy(inverse)]
    if not known:
        require_members(y, names, options.get("allow_singletons", False))
    unlabelled = int((y < 0).sum())
    return y, names, [f"{unlabelled} of {count} without a label."] if unlabelled else []


def require_members(y: Tensor, names: Sequence[str], allowed: bool, where: str = "") -> None:
    """Refuse a class with a single member, unless allowed."""
    counts = torch.bincount(y[y >= 0], minlength=len(names))
    lonely = [name for name, count in zip(names, counts.tolist(), strict=True) if count == 1]
    if lonely and not allowed:
        raise DataError(
            f"Expected at least two members in every class (got one in {lonely[0]!r}{where}"
            + (f" and {len(lonely) - 1} other classes" if len(lonely) > 1 else "")
            + "): no split can hold it. Merge or unlabel it, or pass allow_singletons=True."
        )


def _label_text(value: Any) -> str:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str):
        return value if value.strip() else ""
    if value is None or value == -1 or value != value:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float) or value < 0 or value != value // 1:
        raise DataError(f"Expected text or 0, 1, ... as labels, -1 for none (got {value!r}).")
    return str(int(value))


def _check_ids(ids: tuple[str, ...] | None, count: int, what: str) -> None:
    if ids is None:
        return
    if len(ids) != count:
        raise ShapeError(f"Expected {count} {what} identifiers (got {len(ids)}).")
    name, most = Counter(ids).most_common(1)[0] if ids else ("", 0)
    if most > 1:
        raise DataError(f"Expected different {what} identifiers (got {name!r} {most} times).")


def _hash_graphs(graphs: Sequence[Data], class_names: Sequence[str]) -> str:
    """Return a hash of features, edges, labels and the names of the classes."""
    tensors = {"classes": torch.tensor(list(json.dumps(class_names).encode()), dtype=torch.uint8)}
    for i, graph in enumerate(graphs):
        for key, value in graph.to_dict().items():
            pieces = [value]
            if value.layout == torch.sparse_csr:
                pieces = [value.crow_indices(), value.col_indices(), value.values()]
            tensors |= {f"{i}/{key}/{value.shape}/{j}": p for j, p in enumerate(pieces)}
    return content_hash(tensors)


def finite_features(x: Features, where: str) -> Tensor:
    """Return finite float32 features, ``(n, d)``, dense or CSR."""
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "biuf":
            raise DtypeError(f"Expected numbers as features in {where} (got {x.dtype}).")
        with np.errstate(over="ignore"):  # refused below, with its place
            x = torch.from_numpy(x.astype(np.float32))
    if x.dim() != 2 or not x.size(0):
        raise ShapeError(
            f"Expected features of shape (nodes, d) in {where} (got {tuple(x.shape)})."
        )
    if x.is_complex():
        raise DtypeError(f"Expected real features in {where} (got {x.dtype}).")
    x = (x.to_sparse_csr() if x.layout == torch.sparse_coo else x).detach().cpu().float()
    finite = torch.isfinite(x.values() if x.layout == torch.sparse_csr else x)
    if not finite.all():
        dense = ~torch.isfinite(x.to_dense())
        row, column = dense.nonzero()[0].tolist()
        raise DataError(
            f"Expected finite features in {where} (got {float(x.to_dense()[row, column])} at node "
            f"{row}, column {column}). Correct or leave out what is missing."
        )
    return x


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
    if not isinstance(data, Data):
        raise DtypeError(f"Expected a homogeneous PyG Data as {where} (got {type(data).__name__}).")
    present = {key for key in data.keys() if data[key] is not None}  # noqa: SIM118
    if "edge_index" not in present:
        raise DataError(f"Expected 'edge_index' in {where}. " + nearest("edge_index", present))
    notes = edge_columns_note(_EDGE_KEYS & present, where, options)
    if unused := sorted(present - _EDGE_KEYS - {"x", "edge_index", "y", "num_nodes"}):
        notes.append(f"Attributes not used: {', '.join(unused)}.")
    x = data.x if "x" in present else _constant_feature(data.num_nodes or 0, notes)
    labels = torch.as_tensor(data.y).detach().cpu().numpy() if "y" in present else None
    return finite_features(x, where), data.edge_index.cpu(), labels, notes


def _load_npz(path: str | PathLike[str]) -> tuple[dict[str, NDArray[Any]], set[str]]:
    """Return the arrays under known keys, and the other keys."""
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as archive:
            known = _NPZ_KEYS & set(archive.files)
            return {key: archive[key] for key in sorted(known)}, set(archive.files) - known
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        remedy = "Check the path, or copy the file again"
        if "Object arrays" in str(error):
            remedy = "Save numbers and strings as plain arrays, for instance np.array(x, dtype=str)"
        raise DataError(
            f"Expected a whole .npz file of plain arrays at '{path}' (got: {error}). {remedy}."
        ) from error


def _npz_features(arrays: Mapping[str, NDArray[Any]], path: str | PathLike[str]) -> Features:
    if "x" in arrays:
        return arrays["x"]
    matrix = _npz_matrix(arrays, "attr", "x", path)
    pieces = (torch.from_numpy(matrix.indptr).long(), torch.from_numpy(matrix.indices).long())
    values = torch.from_numpy(matrix.data.astype(np.float32))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(*pieces, values, matrix.shape, check_invariants=True)


def _npz_edges(
    arrays: Mapping[str, NDArray[Any]], path: str | PathLike[str]
) -> tuple[Tensor, set[str]]:
    """Return the edges and the name of the weights, if there are any."""
    if "edge_index" in arrays:
        if arrays["edge_index"].dtype.kind not in "iu":
            kind = arrays["edge_index"].dtype
            raise DtypeError(f"Expected whole numbers in 'edge_index' of '{path}' (got {kind}).")
        return torch.from_numpy(arrays["edge_index"].astype(np.int64)), set()
    matrix = _npz_matrix(arrays, "adj", "edge_index", path).tocoo()
    weights = {"adj_data"} if (matrix.data != 1).any() else set()
    return torch.from_numpy(np.stack([matrix.row, matrix.col])).long(), weights


def _npz_matrix(
    arrays: Mapping[str, NDArray[Any]], matrix: str, instead: str, path: str | PathLike[str]
) -> Any:
    if lacking := [k for p in _MATRIX_PARTS if (k := f"{matrix}_{p}") not in arrays]:
        raise DataError(
            f"Expected '{instead}' or all of '{matrix}_data', '{matrix}_indices', "
            f"'{matrix}_indptr' and '{matrix}_shape' in '{path}' (lacks '{instead}', "
            f"{', '.join(map(repr, lacking))}; has {', '.join(map(repr, sorted(arrays)))})."
        )
    data, indices, indptr, shape = (arrays[f"{matrix}_{part}"] for part in _MATRIX_PARTS)
    try:
        result = csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()))
        result.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"Expected a CSR matrix in '{matrix}_*' of '{path}' (got: {error})."
        ) from error
    result.sum_duplicates()
    return result


def _named_labels(
    labels: NDArray[Any], names: Sequence[str], path: str | PathLike[str]
) -> NDArray[Any]:
    """Replace class indices by the names the file gives them."""
    if labels.dtype.kind not in "iu" or not set(np.unique(labels)) <= {-1, *range(len(names))}:
        raise DataError(
            f"Expected labels that index the {len(names)} 'class_names' of '{path}', -1 for none "
            f"(got {labels.dtype} from {labels.min()} to {labels.max()})."
        )
    named: NDArray[Any] = np.array([*names, ""])[labels]
    return named
