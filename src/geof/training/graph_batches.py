"""Batches cut out of one packed array instead of put together from many small tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from geof.caching import Cache
from geof.data.signatures import SignatureConfig, cached_signature
from geof.methods.interface import GraphInputs
from geof.signature import StructuralSignature


@dataclass(frozen=True, eq=False)
class PackedGraphs:
    """Many graphs one after another.

    Attributes:
        x: ``(n, F)``, the features of all nodes.
        edge_index: ``(2, E)``, nodes numbered within their own graph.
        first_node: ``(G + 1,)``; the nodes of graph ``g`` are ``first_node[g]`` and following.
        first_edge: ``(G + 1,)``, likewise.
        caches: What methods derived from each graph, for all batches it appears in.
    """

    x: Tensor
    edge_index: Tensor
    first_node: Tensor
    first_edge: Tensor
    caches: tuple[Cache, ...]

    @classmethod
    def pack(cls, graphs: Sequence[Data]) -> PackedGraphs:
        """Put graphs with ``x`` and ``edge_index`` one after another."""
        graphs = list(graphs)  # a packed set makes each graph anew whenever it is asked for
        return cls(
            x=torch.cat([graph.x for graph in graphs]),
            edge_index=torch.cat([graph.edge_index for graph in graphs], dim=1),
            first_node=_starts([graph.num_nodes for graph in graphs]),
            first_edge=_starts([graph.edge_index.size(1) for graph in graphs]),
            caches=tuple(Cache() for _ in graphs),
        )

    def __len__(self) -> int:
        return len(self.first_node) - 1

    def sign(self, settings: SignatureConfig | None = None) -> StructuralSignature:
        """Return the signatures of all nodes; the degree is relative to each graph's own."""
        nodes, edges = self.first_node.diff(), self.first_edge.diff()
        offset = torch.repeat_interleave(self.first_node[:-1], edges)
        return cached_signature(
            self.edge_index + offset,
            len(self.x),
            settings,
            batch=torch.repeat_interleave(torch.arange(len(nodes)), nodes),
        )

    def batch(self, chosen: Tensor, signature: Tensor) -> GraphInputs:
        """Return the chosen graphs side by side, in that order."""
        nodes, sizes = _members(self.first_node, chosen)
        edges, counts = _members(self.first_edge, chosen)
        offset = torch.repeat_interleave(sizes.cumsum(0) - sizes, counts)
        return GraphInputs.build(
            self.x.index_select(0, nodes),
            self.edge_index.index_select(1, edges) + offset,
            signature.index_select(0, nodes),
            torch.repeat_interleave(torch.arange(len(chosen)), sizes),
            len(chosen),
            caches=[self.caches[i] for i in chosen.tolist()],
        )


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a dense or sparse CSR matrix, in the same layout."""
    if x.layout == torch.strided:
        return x.index_select(0, rows)
    entries, counts = _members(x.crow_indices(), rows)
    return torch.sparse_csr_tensor(
        _starts(counts.tolist()),
        x.col_indices()[entries],
        x.values()[entries],
        (len(rows), x.size(1)),
        check_invariants=False,
    )


def _starts(sizes: Sequence[int]) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


def _members(first: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions that belong to the chosen, in order, and how many each has."""
    begin = first[chosen]
    counts = first[chosen + 1] - begin
    places = torch.arange(int(counts.sum()))
    shift = torch.repeat_interleave(begin - (counts.cumsum(0) - counts), counts)
    return places + shift, counts
