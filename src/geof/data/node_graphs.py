"""Single graphs: from the raw files of benchmarks, or embedded, without network and files.

Raw files are Planetoid's pickles and the archives of Shchur et al. Pickles are read through an
allow-list of array and dictionary types; anything else in them is refused before it is looked up.
PyG's own reader has no such list.

Embedded are

* :func:`digits_graph`: scikit-learn's handwritten digits, joined to their nearest neighbours: real
  data inside a dependency;
* :func:`covariance_graph`: generated; its classes have equal neighbourhood means and differ only in
  the covariance of their neighbours (paper, Proposition 2 (iv)).
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof.data.cache import Entry, cache_key, content_hash, load_or_build
from geof.data.catalogue import DatasetFacts, Loader
from geof.data.files import raw_digests, reading, require_indices
from geof.data.records import NodeGraph, sparse_features, undirected
from geof.draws import Integers
from geof.errors import DataError
from geof.options import require_positive

VERSION = 1
"""Raised whenever the same files and options give another result."""

SPARSE_BELOW = 0.3
"""Share of non-zero features under which ``x`` is sparse CSR."""


@dataclass(frozen=True)
class _Raw:
    features: sparse.csr_matrix
    source: Integers
    target: Integers
    labels: Integers
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def load_node_graph(
    facts: DatasetFacts, root: Path, row_normalise: bool = True, cache: bool = True
) -> NodeGraph:
    """Load a single graph; see :func:`geof.data.catalogue.load`."""
    digests = raw_digests(facts, root)

    def build() -> Entry:
        return _prepare(_READERS[facts.loader](facts, root), row_normalise)

    if not cache:
        return _restore(facts.name, build())
    options = {"name": facts.name, "row_normalise": row_normalise}
    key = cache_key(digests, VERSION, options)
    return _restore(facts.name, load_or_build(facts.name, key, build))


# Planetoid ------------------------------------------------------------------------------------

# The module of NumPy's array constructor differs between releases, so it is taken from an array.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("scipy.sparse.csr", "csr_matrix"): sparse.csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): sparse.csr_matrix,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
    ("__builtin__", "dict"): dict,
    ("builtins", "dict"): dict,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Knows arrays, sparse matrices, lists and dictionaries, and nothing else."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(file, encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise DataError(
                f"Expected only arrays, sparse matrices and dictionaries in the pickle "
                f"'{self._path}' (got a reference to '{module}.{name}'): a pickle may run any "
                "code, so it was not read further. Do not use this file; fetch it again."
            ) from None


def read_array_pickle(path: Path) -> Any:
    """Return the content of a pickle that holds arrays, sparse matrices, lists and dictionaries.

    Raises:
        DataError: If it refers to anything else, which is then neither imported nor called, or
            cannot be read.
    """
    with reading(path), path.open("rb") as file:
        return _ArrayUnpickler(file, path).load()


def _read_planetoid(facts: DatasetFacts, root: Path) -> _Raw:
    folder, prefix = root / facts.folder / "raw", facts.name.lower()
    paths = {part: folder / f"ind.{prefix}.{part}" for part in ("allx", "tx", "ally", "ty")}
    first, test = (_pickled_matrix(paths[part]) for part in ("allx", "tx"))
    first_label, test_label = (_pickled_labels(paths[part]) for part in ("ally", "ty"))
    index_path, graph_path = (folder / f"ind.{prefix}.{part}" for part in ("test.index", "graph"))
    with reading(index_path):
        test_index = np.loadtxt(index_path, dtype=np.int64, ndmin=1)
    source, target, num_listed = _pickled_graph(graph_path)
    sizes = (first.shape[0], test.shape[0], first.shape[1])
    if sizes != (first_label.size, test_label.size, test.shape[1]) or test_index.size != sizes[1]:
        raise DataError(
            f"Expected features, labels and test indices in '{folder}' to belong together (got "
            f"allx {first.shape}, ally {first_label.size}, tx {test.shape}, ty {test_label.size}, "
            f"test.index {test_index.size}). Fetch the files again."
        )
    num_nodes = max(num_listed, sizes[0], int(test_index.max(initial=-1)) + 1)
    require_indices(index_path, test_index - sizes[0], num_nodes - sizes[0], "index minus allx")
    for ends in (source, target):
        require_indices(graph_path, ends, num_nodes, "node")
    # The k-th row of 'tx' is node test_index[k]. Indices may leave gaps: those nodes (15 in
    # CiteSeer) have neither features nor a label.
    rows = np.append(np.arange(sizes[0]), test_index)
    if np.unique(rows).size != rows.size:
        raise DataError(f"Expected distinct test indices in '{index_path}'. Fetch it again.")
    given = sparse.vstack([first, test]).tocoo()
    features = sparse.csr_matrix(
        (given.data, (rows[given.row], given.col)), shape=(num_nodes, sizes[2])
    )
    labels = np.full(num_nodes, -1, dtype=np.int64)
    labels[rows] = np.append(first_label, test_label)
    names = tuple(map(str, range(int(labels.max(initial=-1)) + 1)))
    return _Raw(features, source, target, labels, names, _unlabelled_note(labels))


def _unlabelled_note(labels: Integers) -> tuple[str, ...]:
    unlabelled = int((labels < 0).sum())
    if not unlabelled:
        return ()
    return (
        f"{unlabelled} nodes have neither features nor a label in the raw files; their "
        "label is -1 (PyG gives them class 0).",
    )


def _pickled_matrix(path: Path) -> sparse.csr_matrix:
    value = read_array_pickle(path)
    with reading(path):
        if not isinstance(value, sparse.csr_matrix):
            raise TypeError(f"a {type(value).__name__} instead of a csr_matrix")
        # A pickle may put anything into the object, so that only its plain arrays are taken.
        state = vars(value)
        parts = {name: state[name] for name in ("data", "indices", "indptr")}
        return _csr(parts, state["_shape"])


def _csr(parts: Mapping[str, Any], shape: Any) -> sparse.csr_matrix:
    """Build the matrix from arrays of numbers, checking every index."""
    for name, part in parts.items():
        kinds = "biuf" if name == "data" else "iu"
        if not isinstance(part, np.ndarray) or part.dtype.kind not in kinds or part.ndim != 1:
            raise TypeError(f"'{name}' is not a vector of numbers")
    rows, columns = (int(size) for size in shape)
    matrix = sparse.csr_matrix(
        (parts["data"], parts["indices"], parts["indptr"]), shape=(rows, columns)
    )
    matrix.check_format(full_check=True)
    return matrix


def _pickled_labels(path: Path) -> Integers:
    value = read_array_pickle(path)
    with reading(path):
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf" or value.ndim != 2:
            raise TypeError("not a matrix of one-hot labels")
        return np.where(value.any(axis=1), value.argmax(axis=1), -1).astype(np.int64)


def _pickled_graph(path: Path) -> tuple[Integers, Integers, int]:
    value = read_array_pickle(path)
    with reading(path):
        if not isinstance(value, dict) or not all(isinstance(v, list) for v in value.values()):
            raise TypeError("not a dictionary of lists")
        counts = [len(neighbours) for neighbours in value.values()]
        source = np.repeat(np.fromiter(value, np.int64, len(value)), counts)
        flat = (node for neighbours in value.values() for node in neighbours)
        return source, np.fromiter(flat, np.int64, sum(counts)), len(value)


# Shchur et al. --------------------------------------------------------------------------------


def _read_npz(facts: DatasetFacts, root: Path) -> _Raw:
    path = root / facts.files[0].path
    with reading(path), np.load(path, allow_pickle=False) as archive:
        adjacency, features = (_npz_matrix(archive, part) for part in ("adj", "attr"))
        labels = archive["labels"].astype(np.int64, casting="same_kind")
        names = _npz_class_names(archive)
    num_nodes = features.shape[0]
    if adjacency.shape != (num_nodes, num_nodes) or labels.shape != (num_nodes,):
        raise DataError(
            f"Expected adjacency, features and labels in '{path}' to belong together (got "
            f"{adjacency.shape}, {features.shape}, {labels.shape}). Fetch it again."
        )
    num_classes = int(labels.max(initial=-1)) + 1
    require_indices(path, labels, num_classes, "label")
    if len(names) != num_classes:
        names = tuple(map(str, range(num_classes)))
    edges = adjacency.tocoo()
    source, target = edges.row.astype(np.int64), edges.col.astype(np.int64)
    return _Raw(features, source, target, labels, names)


def _npz_matrix(archive: Mapping[str, Any], prefix: str) -> sparse.csr_matrix:
    parts = {name: archive[f"{prefix}_{name}"] for name in ("data", "indices", "indptr")}
    return _csr(parts, archive[f"{prefix}_shape"])


def _npz_class_names(archive: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return tuple(map(str, archive["class_names"].tolist()))
    except (KeyError, ValueError):  # absent, or an array of objects, that is, a pickle
        return ()


# Both -----------------------------------------------------------------------------------------

_READERS: dict[Loader, Callable[[DatasetFacts, Path], _Raw]] = {
    "planetoid": _read_planetoid,
    "npz": _read_npz,
}
"""The reader of each format of raw files."""


def _prepare(raw: _Raw, row_normalise: bool) -> Entry:
    num_nodes = len(raw.labels)
    edges, _ = undirected(raw.source, raw.target, num_nodes)
    tensors = {
        "edge_index": torch.from_numpy(edges.astype(np.int32)),
        "y": torch.from_numpy(raw.labels),
        **_feature_tensors(raw.features, row_normalise),
    }
    metadata = {
        "shape": [int(size) for size in raw.features.shape],
        "class_names": list(raw.class_names),
        "notes": list(raw.notes),
        "content_hash": content_hash(tensors),
    }
    return Entry(tensors, metadata)


def _feature_tensors(features: sparse.csr_matrix, row_normalise: bool) -> dict[str, Tensor]:
    x = sparse.csr_matrix(features, dtype=np.float64)
    x.sum_duplicates()
    x.eliminate_zeros()
    if not np.isfinite(x.data).all():
        raise DataError("Expected finite features (got NaN or infinity). Fetch the files again.")
    if row_normalise:
        total = np.asarray(x.sum(axis=1)).ravel()
        # In place: a product with a diagonal matrix would leave the columns unsorted.
        x.data /= np.repeat(np.where(total > 0, total, 1), np.diff(x.indptr))
    if x.nnz >= SPARSE_BELOW * x.shape[0] * x.shape[1]:
        return {"x": torch.from_numpy(x.toarray().astype(np.float32))}
    return {
        "x_row_pointer": torch.from_numpy(x.indptr.astype(np.int32)),
        "x_column": torch.from_numpy(x.indices.astype(np.int32)),
        "x_value": torch.from_numpy(x.data.astype(np.float32)),
    }


def _restore(name: str, entry: Entry) -> NodeGraph:
    tensors, metadata = entry.tensors, entry.metadata
    return NodeGraph(
        name=name,
        graph=Data(
            x=_features(tensors, metadata["shape"]),
            edge_index=tensors["edge_index"].long(),
            y=tensors["y"],
        ),
        class_names=tuple(metadata["class_names"]),
        notes=tuple(metadata["notes"]),
        content_hash=metadata["content_hash"],
    )


def _features(tensors: Mapping[str, Tensor], shape: list[int]) -> Tensor:
    if "x" in tensors:
        return tensors["x"]
    return sparse_features(tensors["x_row_pointer"], tensors["x_column"], tensors["x_value"], shape)


def digits_graph(neighbours: int = 8) -> Data:
    """Return 1,797 handwritten digits (64 pixels in [0, 1], 10 classes) as a neighbour graph.

    Two digits are joined when either is among the other's ``neighbours`` nearest in pixel space;
    labels play no part in the graph.
    """
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    require_positive("neighbours", neighbours)
    pixels, labels = load_digits(return_X_y=True)
    adjacency = kneighbors_graph(pixels, neighbours).tocoo()
    edge_index = torch.from_numpy(np.stack([adjacency.row, adjacency.col])).long()
    return Data(
        x=torch.from_numpy(pixels / 16).float(),
        edge_index=to_undirected(edge_index, num_nodes=len(pixels)),
        y=torch.from_numpy(labels).long(),
    )


def covariance_graph(
    centres: int = 600, pairs: int = 2, channels: int = 4, spread: float = 0.25, seed: int = 0
) -> Data:
    r"""Return centres whose class shows only in the covariance of their neighbours.

    Each centre has a random state of its own and ``2 * pairs`` leaves, set off from it by
    :math:`\pm s v` (class 0) or :math:`\pm s w` (class 1) with
    :math:`v = (1, 1, 0, \dots)`, :math:`w = (1, -1, 0, \dots)` and a random size :math:`s` per
    pair. The mean of the offsets and every coordinate's variance are the same for both classes; the
    covariance between the first two coordinates has opposite signs.

    Only what Proposition 2 says follows: in one step with uniform weights, and with coordinates
    that no learned map may rotate, a first-order update or a diagonal statistic cannot tell the
    classes apart and the full second moment can. Over two steps any network with a nonlinearity
    can, too.

    Args:
        centres: Number of centres, half of each class; the first nodes of the graph.
        pairs: Leaf pairs per centre.
        channels: Width of the features, at least 2.
        spread: Standard deviation of the centres around (1, 1, ...).
        seed: Seed of all draws.

    Returns:
        A graph with ``x``, ``edge_index``, ``y`` (-1 for leaves) and ``centre_mask``.
    """
    require_positive("centres", centres, least=2)
    require_positive("pairs", pairs)
    require_positive("channels", channels, least=2)
    generator = torch.Generator().manual_seed(seed)
    label = (torch.arange(centres) % 2)[torch.randperm(centres, generator=generator)]
    state = 1 + spread * torch.randn(centres, channels, generator=generator)
    direction = torch.zeros(centres, channels)
    direction[:, 0] = 1
    direction[:, 1] = 1 - 2 * label
    size = 0.5 + torch.rand(centres, pairs, 1, generator=generator)
    offset = size * direction.unsqueeze(1)  # (centres, pairs, channels)
    leaves = state.unsqueeze(1) + torch.cat([offset, -offset], dim=1)
    return _star_forest(state, leaves, label)


def _star_forest(state: Tensor, leaves: Tensor, label: Tensor) -> Data:
    """Join every centre to its own leaves, ``(centres, leaves, channels)``."""
    centres, per_centre, channels = leaves.shape
    centre = torch.arange(centres).repeat_interleave(per_centre)
    leaf = centres + torch.arange(centres * per_centre)
    num_nodes = centres * (1 + per_centre)
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[:centres] = True
    return Data(
        x=torch.cat([state, leaves.reshape(-1, channels)]),
        edge_index=to_undirected(torch.stack([centre, leaf]), num_nodes=num_nodes),
        y=torch.cat([label, label.new_full((num_nodes - centres,), -1)]),
        centre_mask=mask,
    )
