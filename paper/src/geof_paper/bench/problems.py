"""A workload made concrete: real where its raw files are there, generated where they are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from geof.data.catalogue import find, load
from geof.data.graph_sets import PackedGraphs
from geof.data.molecules import BOND_SIZES, RING_SIZE
from geof.data.provision import list_datasets
from geof.data.records import GraphSet
from geof.data.sources import SignatureConfig
from geof.draws import raw_permutation, raw_stream
from geof.nn.inputs import without_csr_warnings
from geof_paper.bench.catalogue import BATCH_SIZE, Shape, Sizes, Workload
from geof_paper.bench.generators import molecules, skewed_edges, sparse_rows

Source: TypeAlias = Literal["real", "generated"]
Origin: TypeAlias = tuple[str | None, Source]
"""Benchmark and source."""

SIGNATURE_CHANNELS = 1 + SignatureConfig().walk_length
"""The width ``geof train`` uses. The values are drawn: no method's time depends on them."""

EDGE_CATEGORIES = (*BOND_SIZES, RING_SIZE)
"""Sizes of the columns of drawn edge attributes, those of a bond."""


@dataclass(frozen=True)
class Piece:
    """What one optimiser step sees: the whole graph, or a batch of graphs side by side.

    Attributes:
        x: ``(n, F)``, dense or sparse CSR.
        edge_index: ``(2, E)``, both directions, no self-loops.
        signature: ``(n, q)``.
        y: The class of each node, or of each graph of a batch.
        batch: ``(n,)``, the graph of each node, or ``None`` for a single graph.
        num_graphs: How many graphs.
        edge_attr: ``(E, 4)`` codes of each edge, for the entry that reads them.
    """

    x: Tensor
    edge_index: Tensor
    signature: Tensor
    y: Tensor
    batch: Tensor | None = None
    num_graphs: int = 1
    edge_attr: Tensor | None = None

    def with_edge_attr(self) -> Piece:
        """Return the piece with attributes of the sizes of bonds, both directions alike or not.

        They are drawn: no method's time depends on their values.
        """
        generator = torch.Generator().manual_seed(0)
        edges = (self.edge_index.size(1),)
        columns = [torch.randint(size, edges, generator=generator) for size in EDGE_CATEGORIES]
        codes = torch.stack(columns, dim=1)  # drawn on the CPU: the same everywhere
        return replace(self, edge_attr=codes.to(self.edge_index.device))

    def to(self, device: torch.device) -> Piece:
        """Return the same on a device."""
        tensors = {k: v for k, v in _state(self).items() if isinstance(v, Tensor)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in tensors.items()}
        return replace(self, **moved)


@dataclass(frozen=True)
class Facts:
    """What the rows say of a problem.

    Attributes:
        benchmark: Whose data or stand-in it is, and whose presets hold; ``None`` for none.
        source: Whether it is the real data.
        inputs: Whether ``x`` is dense or sparse, for all alike.
        graphs: In the dataset.
        nodes: In the dataset.
        edges: In the dataset, every undirected edge counted twice, no self-loops.
        features: Columns of ``x``.
        classes: Number of classes.
        batches_per_epoch: Optimiser steps of an epoch.
        graphs_per_epoch: Graphs an epoch sees; fewer than ``graphs`` for a fixed subset.
        largest_nodes: Nodes of the largest piece.
        largest_edges: Its edges, counted as above.
        data_bytes: Of all tensors of all pieces.
    """

    benchmark: str | None
    source: Source
    inputs: Literal["dense", "sparse"]
    graphs: int
    nodes: int
    edges: int
    features: int
    classes: int
    batches_per_epoch: int
    graphs_per_epoch: int
    largest_nodes: int
    largest_edges: int
    data_bytes: int


@dataclass(frozen=True)
class Problem:
    """Pieces and facts.

    Attributes:
        pieces: One for a graph in full batch; the fixed mini-batches of an epoch for a set.
        facts: What the rows say of it.
    """

    pieces: tuple[Piece, ...]
    facts: Facts

    @property
    def is_static(self) -> bool:
        """Whether every epoch sees the same graph, so that what depends on it may be kept."""
        return self.pieces[0].batch is None

    @property
    def shape(self) -> Shape:
        """Whether it is one graph or a set."""
        return "graph" if self.is_static else "set"

    @property
    def device(self) -> torch.device:
        """Where the pieces are, and so where a network is trained on them."""
        return self.pieces[0].edge_index.device

    def to(self, device: torch.device) -> Problem:
        """Return the same with all pieces on a device."""
        with without_csr_warnings():
            return replace(self, pieces=tuple(piece.to(device) for piece in self.pieces))

    def save(self, path: Path) -> None:
        """Write it for other processes of this run."""
        torch.save({"pieces": [_state(p) for p in self.pieces], "facts": asdict(self.facts)}, path)

    @classmethod
    def load(cls, path: Path) -> Problem:
        """Read what :meth:`save` wrote, into memory of this process's own."""
        with without_csr_warnings():
            content = torch.load(path, weights_only=True)
        pieces = tuple(Piece(**state) for state in content["pieces"])
        return cls(pieces, Facts(**content["facts"]))


def build_problem(
    workload: Workload, data_root: str | None = None, batches: int | None = None
) -> Problem:
    """Load or generate a workload.

    Args:
        workload: Which.
        data_root: Folder of raw files, or ``None`` to generate.
        batches: Mini-batches of an epoch (default: the workload's own number).
    """
    with without_csr_warnings():
        benchmark = workload.benchmark
        if benchmark is not None and data_root is not None and _is_there(benchmark, data_root):
            source: Source = "real"
            data, classes = _real(benchmark, data_root)
        else:
            source = "generated"
            data, classes = _generated(workload)
        if isinstance(data, Data):
            return _graph_problem(data, classes, (benchmark, source), sparse=workload.sparse)
        return _set_problem(data, classes, (benchmark, source), batches or workload.batches)


def _is_there(benchmark: str, data_root: str) -> bool:
    rows = list_datasets(data_root)
    return any(row.present is True for row in rows if row.dataset.name == benchmark)


def _real(benchmark: str, data_root: str) -> tuple[Data | PackedGraphs, int]:
    data = load(benchmark, data_root=data_root)
    if not isinstance(data, GraphSet):
        return data.graph, data.num_classes
    assert isinstance(data.graphs, PackedGraphs)
    return data.graphs, data.num_classes


def _generated(workload: Workload) -> tuple[Data | PackedGraphs, int]:
    sizes = workload.sizes or Sizes(**asdict(find(str(workload.benchmark)).expected))
    if workload.shape == "set":
        return molecules(**asdict(sizes), variation=workload.variation), sizes.classes
    generator = torch.Generator().manual_seed(0)
    if workload.density is None:
        # Rows sum to about one, like the paper's row-normalised features.
        x = torch.rand(sizes.nodes, sizes.features, generator=generator) * (2 / sizes.features)
    else:
        x = sparse_rows(sizes.nodes, sizes.features, workload.density)
    y = torch.randint(sizes.classes, (sizes.nodes,), generator=generator)
    edge_index = skewed_edges(sizes.nodes, sizes.edges, workload.variation)
    return Data(x=x, edge_index=edge_index, y=y), sizes.classes


def _graph_problem(graph: Data, classes: int, origin: Origin, *, sparse: bool) -> Problem:
    x = graph.x if sparse or graph.x.layout == torch.strided else graph.x.to_dense()
    piece = Piece(x, graph.edge_index, _signatures(x.size(0), 0), graph.y)
    sizes = Sizes(1, x.size(0), graph.edge_index.size(1), x.size(1), classes)
    return Problem((piece,), _facts(sizes, (piece,), origin))


def _set_problem(
    graphs: PackedGraphs, classes: int, origin: Origin, batches: int | None
) -> Problem:
    pieces = tuple(_mini_batches(graphs, batches))
    sizes = Sizes(len(graphs), graphs.num_nodes, graphs.num_edges, graphs.num_features, classes)
    return Problem(pieces, _facts(sizes, pieces, origin))


def _mini_batches(graphs: PackedGraphs, batches: int | None) -> Iterator[Piece]:
    """Collate a set in a random order, so that a part of the batches speaks for the whole."""
    order = torch.from_numpy(raw_permutation(raw_stream(0), len(graphs)))
    for number, chosen in enumerate(order.split(BATCH_SIZE)[:batches]):
        batch = Batch.from_data_list([graphs[int(i)] for i in chosen])
        signature = _signatures(batch.num_nodes, number)
        yield Piece(batch.x, batch.edge_index, signature, batch.y, batch.batch, len(chosen))


def _signatures(nodes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(nodes, SIGNATURE_CHANNELS, generator=generator)


def _facts(sizes: Sizes, pieces: tuple[Piece, ...], origin: Origin) -> Facts:
    return Facts(
        **asdict(sizes),
        benchmark=origin[0],
        source=origin[1],
        inputs="dense" if pieces[0].x.layout == torch.strided else "sparse",
        batches_per_epoch=len(pieces),
        graphs_per_epoch=sum(piece.num_graphs for piece in pieces),
        largest_nodes=max(piece.x.size(0) for piece in pieces),
        largest_edges=max(piece.edge_index.size(1) for piece in pieces),
        data_bytes=sum(_bytes(value) for piece in pieces for value in _state(piece).values()),
    )


def _state(piece: Piece) -> dict[str, Any]:
    return {field.name: getattr(piece, field.name) for field in fields(piece)}


def _bytes(value: object) -> int:
    if not isinstance(value, Tensor):
        return 0
    if value.layout == torch.strided:
        return value.nbytes
    parts = (value.crow_indices(), value.col_indices(), value.values())
    return sum(part.nbytes for part in parts)
