"""What every encoder is given, whatever it makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from geof.kernels import Neighbourhoods


@dataclass(frozen=True)
class GraphInputs:
    """One graph, or a batch of graphs side by side.

    Attributes:
        x: ``(n, F)`` features, dense or sparse CSR.
        edge_index: ``(2, E)``, both directions of every edge, no self-loops.
        edges: The same, closed and sorted for GeoF.
        signature: ``(n, q)``.
        batch: ``(n,)``, the graph of each node, or ``None`` for a single graph.
        num_graphs: How many graphs.
        kept: One dictionary per graph, for what a method derives from its edges and features once;
            it lives as long as the data do, whatever batches the graph appears in.
    """

    x: Tensor
    edge_index: Tensor
    edges: Neighbourhoods
    signature: Tensor
    batch: Tensor | None = None
    num_graphs: int = 1
    kept: tuple[dict[str, Any], ...] = ()

    @classmethod
    def build(
        cls,
        x: Tensor,
        edge_index: Tensor,
        signature: Tensor,
        batch: Tensor | None = None,
        num_graphs: int = 1,
        kept: Sequence[dict[str, Any]] | None = None,
    ) -> GraphInputs:
        """Prepare the neighbourhoods."""
        edges = Neighbourhoods.from_edge_index(edge_index, x.size(0))
        if kept is None:
            kept = [{} for _ in range(num_graphs)]
        return cls(x, edge_index, edges, signature, batch, num_graphs, tuple(kept))
