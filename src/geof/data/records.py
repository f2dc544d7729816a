"""What loading gives: one labelled graph, or a labelled set of graphs, with its provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_geometric.data import Data


@dataclass(frozen=True)
class NodeGraph:
    """A single graph for node classification or link prediction.

    Attributes:
        name: The dataset's name.
        graph: ``x`` (dense, or sparse CSR where mostly zero), ``edge_index`` (undirected, sorted,
            without repeats and self-loops) and ``y`` (int64, -1 for unlabelled).
        class_names: The label of each class index, in order.
        node_ids: The user's own identifiers in node order, or ``None`` for 0, 1, 2, ...
        notes: What a reader of a number measured on it must know: fallbacks, dropped rows.
        content_hash: Changes whenever the features, edges or labels do.
    """

    name: str
    graph: Data
    class_names: tuple[str, ...]
    node_ids: tuple[str, ...] | None = None
    notes: tuple[str, ...] = field(default=())
    content_hash: str = ""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


@dataclass(frozen=True)
class GraphSet:
    """A set of graphs for graph classification.

    Attributes:
        name: The dataset's name.
        graphs: Each with ``x`` (dense), ``edge_index`` (undirected, sorted, without repeats and
            self-loops), ``y`` (one int64) and, where the source has them, ``edge_attr`` in the
            order of ``edge_index``.
        class_names: The label of each class index, in order.
        graph_ids: The user's own identifiers in order, or ``None`` for 0, 1, 2, ...
        notes: What a reader of a number measured on it must know: fallbacks, dropped rows.
        content_hash: Changes whenever the features, edges or labels do.
    """

    name: str
    graphs: Sequence[Data]
    class_names: tuple[str, ...]
    graph_ids: tuple[str, ...] | None = None
    notes: tuple[str, ...] = field(default=())
    content_hash: str = ""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)
