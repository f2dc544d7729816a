"""Sets of graphs from their raw files: TUDataset's text, molecules as SMILES, OGB's tables.

A set is held as a few long arrays and offsets; a graph is cut out when it is asked for.
Categorical features are held as codes and widened to one-hot columns at that moment, for a linear
map of those is what an embedding sum is.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from geof.data.cache import Entry, cache_key, content_hash, load_or_build
from geof.data.catalogue import DatasetFacts, Loader, find, resolve_data_root
from geof.data.files import raw_digests, read_numbers, reading, require_indices
from geof.data.molecules import (
    ATOM_SIZES,
    BOND_SIZES,
    in_ring,
    one_hot,
    parse_smiles,
    rdkit_version,
)
from geof.data.records import GraphSet, undirected
from geof.draws import Integers
from geof.errors import DataError

VERSION = 1
"""Raised whenever the same files and options give another result."""


class PackedGraphs(Sequence[Data]):
    """The graphs of a set as a read-only sequence; each is made when it is asked for.

    Args:
        tensors: ``node_pointer`` and ``edge_pointer`` (graphs + 1); ``edge_index`` (2, E), counted
            from each graph's first node; ``y`` (graphs); ``x`` (N, C) or ``codes`` (N, columns);
            ``edge_attr`` (E, columns) where there is one.
        sizes: The size of each column's vocabulary, with ``codes``.
    """

    def __init__(self, tensors: Mapping[str, Tensor], sizes: Sequence[int] = ()) -> None:
        self._tensors = dict(tensors)
        self._node_pointer = tensors["node_pointer"].tolist()
        self._edge_pointer = tensors["edge_pointer"].tolist()
        self._sizes = tuple(sizes)
        self.num_features = sum(sizes) if sizes else tensors["x"].size(1)

    @property
    def labels(self) -> Tensor:
        """The classes of all graphs, ``(graphs,)``."""
        return self._tensors["y"]

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all graphs together."""
        return int(self._node_pointer[-1])

    @property
    def num_edges(self) -> int:
        """Number of edges of all graphs together, both directions counted."""
        return int(self._edge_pointer[-1])

    def with_rings(self) -> PackedGraphs:
        """Return the same with a further column of ``edge_attr``: whether an edge is in a ring."""
        pointer, attributes = self._tensors["node_pointer"], self._tensors["edge_attr"]
        first = torch.repeat_interleave(pointer[:-1], self._tensors["edge_pointer"].diff())
        ring = in_ring(self._tensors["edge_index"].long() + first, self.num_nodes)
        wider = torch.cat([attributes, ring[:, None].to(attributes.dtype)], dim=1)
        return PackedGraphs({**self._tensors, "edge_attr": wider}, self._sizes)

    def __len__(self) -> int:
        return len(self._node_pointer) - 1

    @overload
    def __getitem__(self, index: int) -> Data: ...
    @overload
    def __getitem__(self, index: slice) -> list[Data]: ...
    def __getitem__(self, index: int | slice) -> Data | list[Data]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"graph {index} of {len(self)}")
        edges = slice(self._edge_pointer[i], self._edge_pointer[i + 1])
        graph = Data(
            x=self._features(slice(self._node_pointer[i], self._node_pointer[i + 1])),
            edge_index=self._tensors["edge_index"][:, edges].long(),
            y=self._tensors["y"][i : i + 1],
        )
        if "edge_attr" in self._tensors:
            graph.edge_attr = self._tensors["edge_attr"][edges].long()
        return graph

    def __iter__(self) -> Iterator[Data]:
        return (self[i] for i in range(len(self)))

    def _features(self, nodes: slice) -> Tensor:
        if "x" in self._tensors:
            return self._tensors["x"][nodes]
        return one_hot(self._tensors["codes"][nodes], self._sizes)


@dataclass(frozen=True)
class _Raw:
    """All graphs in one: edges between nodes counted through, in the order of the graphs."""

    num_nodes: Integers  # per graph
    source: Integers
    target: Integers
    labels: Integers  # per graph, 0, 1, ...
    class_names: tuple[str, ...]
    codes: Integers | None = None
    sizes: tuple[int, ...] = ()
    x: NDArray[np.float32] | None = None
    edge_attr: Integers | None = None
    graph_ids: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def load_graph_set(facts: DatasetFacts, root: Path, cache: bool = True) -> GraphSet:
    """Load a set of graphs; see :func:`geof.data.catalogue.load`."""
    digests = raw_digests(facts, root)

    def build() -> Entry:
        return _prepare(_READERS[facts.loader](facts, root, digests))

    if not cache:
        return _restore(facts.name, build())
    options: dict[str, Any] = {"name": facts.name}
    if facts.loader == "smiles":  # which molecules parse, and to what, depends on the release
        options["rdkit"] = rdkit_version()
    key = cache_key(digests, VERSION, options)
    return _restore(facts.name, load_or_build(facts.name, key, build))


def scaffold_split(data_root: Path | str | None = None) -> dict[str, Tensor]:
    """Return OGB's own split of ogbg-molhiv: sorted graph indices ``train``, ``valid``, ``test``.

    Raises:
        DataError: If its files are missing or do not split the graphs.
    """
    facts, root = find("ogbg-molhiv"), resolve_data_root(data_root)
    raw_digests(facts, root)
    folder = root / facts.folder
    parts = {
        part: read_numbers(folder / "split" / "scaffold" / f"{part}.csv.gz")[:, 0]
        for part in ("train", "valid", "test")
    }
    num_graphs = len(read_numbers(folder / "raw" / "num-node-list.csv.gz"))
    together = np.sort(np.concatenate(list(parts.values())))
    if not np.array_equal(together, np.arange(num_graphs)):
        raise DataError(
            f"Expected the three files in '{folder / 'split' / 'scaffold'}' to name each of the "
            f"{num_graphs} graphs once. Run 'geof data fetch {facts.name} --force'."
        )
    return {part: torch.from_numpy(np.sort(index)) for part, index in parts.items()}


# TUDataset ------------------------------------------------------------------------------------


def _read_tu(facts: DatasetFacts, root: Path, digests: Mapping[str, str]) -> _Raw:
    paths = {_tu_part(file.path, facts.name): root / file.path for file in facts.files}
    edge_path, graph_path = paths["A"], paths["graph_indicator"]
    graph = read_numbers(graph_path)[:, 0] - 1
    raw_labels = read_numbers(paths["graph_labels"])[:, 0]
    require_indices(graph_path, graph, len(raw_labels), "graph (less one)")
    if (np.diff(graph) < 0).any():
        raise DataError(f"Expected ascending graph numbers in '{graph_path}'. Fetch it again.")
    source, target = _tu_edges(edge_path, graph)
    values, labels = np.unique(raw_labels, return_inverse=True)
    edge_attr = None
    if "edge_labels" in paths:
        edge_attr = _tu_codes(paths["edge_labels"], len(source))
    codes, sizes, x, notes = _tu_features(facts, paths, digests, graph.size, source, target)
    return _Raw(
        num_nodes=np.bincount(graph, minlength=len(raw_labels)),
        source=source,
        target=target,
        labels=labels.reshape(-1).astype(np.int64),
        class_names=facts.class_names or tuple(map(str, values.tolist())),
        codes=codes,
        sizes=sizes,
        x=x,
        edge_attr=edge_attr,
        notes=notes,
    )


def _tu_part(path: str, name: str) -> str:
    return Path(path).stem.removeprefix(f"{name}_")


def _tu_edges(path: Path, graph: Integers) -> tuple[Integers, Integers]:
    edges = read_numbers(path, columns=2) - 1
    require_indices(path, edges.ravel(), graph.size, "node (less one)")
    source, target = edges[:, 0], edges[:, 1]
    crossing = np.flatnonzero(graph[source] != graph[target])
    if crossing.size:
        raise DataError(
            f"Expected both ends of every edge in one graph (got line {crossing[0] + 1} of "
            f"'{path}'). Fetch the files again."
        )
    return source, target


def _tu_codes(path: Path, count: int) -> Integers:
    """Read one label per line and count from the smallest, as PyG does."""
    labels = read_numbers(path)
    if len(labels) != count:
        raise DataError(
            f"Expected {count} lines in '{path}' (got {len(labels)}). Fetch the file again."
        )
    codes: Integers = labels - labels.min(axis=0, initial=np.iinfo(np.int64).max)
    return codes


def _tu_features(
    facts: DatasetFacts,
    paths: Mapping[str, Path],
    digests: Mapping[str, str],
    num_nodes: int,
    source: Integers,
    target: Integers,
) -> tuple[Integers | None, tuple[int, ...], NDArray[np.float32] | None, tuple[str, ...]]:
    """Return codes with their sizes, or real-valued features, and notes."""
    if "node_labels" in paths:
        codes = _tu_codes(paths["node_labels"], num_nodes)
        return codes, tuple((codes.max(axis=0, initial=0) + 1).tolist()), None, ()
    (file,) = (file for file in facts.files if file.path.endswith("_node_attributes.txt"))
    found = digests.get(file.path)
    if found is not None and file.sha256 in (None, found):
        path = paths["node_attributes"]
        x = read_numbers(path, dtype=np.float32)
        if len(x) != num_nodes or not np.isfinite(x).all():
            raise DataError(f"Expected {num_nodes} finite rows in '{path}' (got {len(x)} rows).")
        return None, (), x, ()
    what = "is missing" if found is None else f"has the SHA-256 {found} instead of {file.sha256}"
    edges, _ = undirected(source, target, num_nodes)
    degree = np.bincount(edges[0], minlength=num_nodes)
    note = (
        f"FALLBACK: '{Path(file.path).name}' {what}; the features are one-hot degrees instead of "
        f"{facts.name}'s {facts.expected.features} attributes. Numbers measured on it do "
        "not compare with published ones."
    )
    return degree[:, None], (int(degree.max(initial=0)) + 1,), None, (note,)


# Molecules ------------------------------------------------------------------------------------


def _read_smiles(facts: DatasetFacts, root: Path, _: Mapping[str, str]) -> _Raw:
    path = root / facts.files[0].path
    rows = _smiles_rows(path)
    parsed = [(row, label, parse_smiles(smiles)) for row, (smiles, label) in enumerate(rows)]
    kept = [(row, label, molecule) for row, label, molecule in parsed if molecule is not None]
    if not kept:
        raise DataError(f"Expected molecules in '{path}' (got none that RDKit can parse).")
    molecules = [molecule for _, _, molecule in kept]
    sizes = np.array([len(molecule.atoms) for molecule in molecules])
    first = np.cumsum(sizes) - sizes
    bonds = np.concatenate([m.bonds + start for m, start in zip(molecules, first, strict=True)])
    lost = [row for row, _, molecule in parsed if molecule is None]
    return _Raw(
        num_nodes=sizes,
        source=bonds[:, 0],
        target=bonds[:, 1],
        labels=np.array([label for _, label, _ in kept]),
        class_names=facts.class_names,
        codes=np.concatenate([molecule.atoms for molecule in molecules]),
        sizes=ATOM_SIZES,
        edge_attr=np.concatenate([molecule.bond_codes for molecule in molecules]),
        graph_ids=tuple(str(row) for row, _, _ in kept),
        notes=_unparsable_note(lost, len(rows)),
    )


def _unparsable_note(lost: Sequence[int], count: int) -> tuple[str, ...]:
    if not lost:
        return ()
    return (
        f"{len(lost)} of {count} SMILES cannot be parsed by RDKit {rdkit_version()} and are left "
        f"out: rows {', '.join(map(str, lost))} (from 0, without the header). 'graph_ids' are the "
        "rows of the others.",
    )


def _smiles_rows(path: Path) -> list[tuple[str, int]]:
    rows = []
    with reading(path), path.open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file, strict=True)
        for row in table:
            label = row.get("p_np")
            if not row.get("smiles") or label not in ("0", "1") or None in row:
                raise DataError(
                    f"Expected a SMILES in column 'smiles' and 0 or 1 in column 'p_np' (got "
                    f"{row} in '{path}', line {table.line_num}). Fetch the file again."
                )
            rows.append((row["smiles"], int(label)))
    return rows


# OGB ------------------------------------------------------------------------------------------


def _read_ogb(facts: DatasetFacts, root: Path, _: Mapping[str, str]) -> _Raw:
    folder = root / facts.folder
    tables = {
        part: read_numbers(folder / "raw" / f"{part}.csv.gz", columns=columns)
        for part, columns in {
            "num-node-list": 1,
            "num-edge-list": 1,
            "graph-label": 1,
            "node-feat": len(ATOM_SIZES),
            "edge": 2,
            "edge-feat": len(BOND_SIZES),
        }.items()
    }
    num_nodes, num_edges = (tables[f"num-{part}-list"][:, 0] for part in ("node", "edge"))
    labels = tables["graph-label"][:, 0]
    expected = {
        "num-edge-list": len(num_nodes),
        "graph-label": len(num_nodes),
        "node-feat": num_nodes.sum(),
        "edge": num_edges.sum(),
        "edge-feat": num_edges.sum(),
    }
    for part, count in expected.items():
        if len(tables[part]) != count:
            raise DataError(
                f"Expected {count} rows in '{folder / 'raw' / part}.csv.gz' (got "
                f"{len(tables[part])}). Run 'geof data fetch {facts.name} --force'."
            )
    _require_codes(folder / "raw" / "node-feat.csv.gz", tables["node-feat"], ATOM_SIZES)
    _require_codes(folder / "raw" / "edge-feat.csv.gz", tables["edge-feat"], BOND_SIZES)
    require_indices(folder / "raw" / "graph-label.csv.gz", labels, 2, "label")
    # Atoms are counted from each molecule's first; adding the offset must not leave the molecule.
    size, first = (np.repeat(v, num_edges) for v in (num_nodes, np.cumsum(num_nodes) - num_nodes))
    for ends in tables["edge"].T:
        inside = np.where((ends >= 0) & (ends < size), 0, -1)
        require_indices(folder / "raw" / "edge.csv.gz", inside, 1, "atom within its molecule")
    return _Raw(
        num_nodes=num_nodes,
        source=tables["edge"][:, 0] + first,
        target=tables["edge"][:, 1] + first,
        labels=labels,
        class_names=facts.class_names,
        codes=tables["node-feat"],
        sizes=ATOM_SIZES,
        edge_attr=tables["edge-feat"],
    )


def _require_codes(path: Path, codes: Integers, sizes: tuple[int, ...]) -> None:
    for column, size in enumerate(sizes):
        require_indices(path, codes[:, column], size, f"code in column {column}")


# All ------------------------------------------------------------------------------------------

_READERS: dict[Loader, Callable[[DatasetFacts, Path, Mapping[str, str]], _Raw]] = {
    "tu": _read_tu,
    "smiles": _read_smiles,
    "ogb": _read_ogb,
}
"""The reader of each format of raw files, given the facts, the data root and the files' digests."""


def _prepare(raw: _Raw) -> Entry:
    edges, place = undirected(raw.source, raw.target, int(raw.num_nodes.sum()))
    node_pointer = np.append(0, np.cumsum(raw.num_nodes))
    graph = np.repeat(np.arange(len(raw.num_nodes)), raw.num_nodes)[edges[0]]
    edge_pointer = np.append(0, np.cumsum(np.bincount(graph, minlength=len(raw.num_nodes))))
    arrays: dict[str, NDArray[Any]] = {
        "node_pointer": node_pointer,
        "edge_pointer": edge_pointer,
        "edge_index": (edges - node_pointer[graph]).astype(np.int32),
        "y": raw.labels,
    }
    if raw.x is not None:
        arrays["x"] = raw.x
    if raw.codes is not None:
        arrays["codes"] = _compact(raw.codes)
    if raw.edge_attr is not None:
        arrays["edge_attr"] = _compact(raw.edge_attr[place])
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    metadata = {
        "sizes": list(raw.sizes),
        "class_names": list(raw.class_names),
        "graph_ids": None if raw.graph_ids is None else list(raw.graph_ids),
        "notes": list(raw.notes),
        "content_hash": content_hash(tensors),
    }
    return Entry(tensors, metadata)


def _compact(codes: Integers) -> NDArray[Any]:
    small = codes.max(initial=0) <= np.iinfo(np.int16).max
    return codes.astype(np.int16 if small else np.int32)


def _restore(name: str, entry: Entry) -> GraphSet:
    metadata = entry.metadata
    ids = metadata["graph_ids"]
    return GraphSet(
        name=name,
        graphs=PackedGraphs(entry.tensors, metadata["sizes"]),
        class_names=tuple(metadata["class_names"]),
        graph_ids=None if ids is None else tuple(ids),
        notes=tuple(metadata["notes"]),
        content_hash=metadata["content_hash"],
    )
