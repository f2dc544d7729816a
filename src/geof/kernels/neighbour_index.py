r"""The in-neighbours of every node, and a graph cut into pieces of bounded size by them.

Sampled batches (:mod:`geof.data.batching`) and full-graph inference in pieces
(:mod:`geof.nn.inference`) are both read off this index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from geof.draws import Integers, sorted_unique
from geof.kernels.neighbourhood import check_edge_index
from geof.options import require_positive

ALL = -1
"""The fanout that takes every neighbour."""


@dataclass(frozen=True, eq=False)
class NeighbourIndex:
    """In-neighbours of every node, sorted by target, then source; sets, without self-loops.

    GeoF's neighbourhoods are sets that hold the node itself in any case, so a repeated edge or a
    given self-loop must not use up a draw.

    Attributes:
        pointer: ``(n + 1,)``; the neighbours of ``i`` are ``source[pointer[i]:pointer[i + 1]]``.
        source: ``(E,)``.
    """

    pointer: Integers
    source: Integers

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, num_nodes: int) -> NeighbourIndex:
        """Sort and de-duplicate ``(2, E)`` int64 edges, sources in the first row."""
        require_positive("num_nodes", num_nodes, least=0)
        check_edge_index(edge_index, num_nodes)
        source, target = edge_index.detach().cpu().numpy()
        key = sorted_unique((target * num_nodes + source)[source != target])
        target, source = np.divmod(key, max(num_nodes, 1))
        return cls(np.searchsorted(target, np.arange(num_nodes + 1)).astype(np.int64), source)

    @property
    def num_nodes(self) -> int:
        """``n``."""
        return len(self.pointer) - 1

    def degree(self, nodes: Integers) -> Integers:
        """Return the number of in-neighbours."""
        return self.pointer[nodes + 1] - self.pointer[nodes]

    def neighbours(self, nodes: Integers) -> tuple[Integers, Integers]:
        """Return all in-neighbours and, for each, whose it is as a position in ``nodes``."""
        degree = self.degree(nodes)
        owner = np.repeat(np.arange(len(nodes), dtype=np.int64), degree)
        # Consecutive within each node: count up, starting anew where a node's stretch begins.
        begin = self.pointer[nodes] - (np.cumsum(degree) - degree)
        return self.source[begin[owner] + np.arange(len(owner))], owner

    def sample(
        self, nodes: Integers, fanout: int, bits: np.random.PCG64
    ) -> tuple[Integers, Integers]:
        """Return up to ``fanout`` in-neighbours of each node, drawn without replacement."""
        if fanout == ALL:
            return self.neighbours(nodes)
        many = self.degree(nodes) > fanout
        few = np.flatnonzero(~many)
        source, owner = self.neighbours(nodes[few])
        crowded = np.flatnonzero(many)
        chosen = _distinct_below(self.degree(nodes[crowded]), fanout, bits)  # (fanout, crowded)
        drawn = self.source[self.pointer[nodes[crowded]] + chosen]
        return (
            np.concatenate([source, drawn.ravel()]),
            np.concatenate([few[owner], np.tile(crowded, fanout)]),
        )


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive target nodes with everything that one step needs to update them.

    Attributes:
        targets: The nodes to update, in the graph's numbering.
        rows: The same nodes in the piece's numbering.
        nodes: ``(n_piece,)``, targets and in-neighbours, ascending. So the piece lists each
            target's neighbours in the graph's own order, and sums run as they do there.
        edge_index: ``(2, E_piece)`` in the piece's numbering, into the targets only.
    """

    targets: slice
    rows: slice
    nodes: Tensor
    edge_index: Tensor


def pieces_of(index: NeighbourIndex, piece_size: int) -> Iterator[Piece]:
    """Cut a graph into pieces of bounded size; together their targets are all nodes, once each.

    Args:
        index: The graph.
        piece_size: Most in-neighbours a piece may have, every target counted as its own
            neighbour too. It bounds a piece's edges and its nodes, unlike a number of targets
            would where degrees differ. A single node with more neighbours is a piece of its own.
    """
    require_positive("piece_size", piece_size)
    # Closed neighbourhoods before node i, i = 0..n.
    before = index.pointer + np.arange(index.num_nodes + 1)
    start = 0
    while start < index.num_nodes:
        fits = int(np.searchsorted(before, before[start] + piece_size, side="right")) - 1
        stop = max(fits, start + 1)
        yield _piece(index, start, stop)
        start = stop


def _piece(index: NeighbourIndex, start: int, stop: int) -> Piece:
    targets = np.arange(start, stop, dtype=np.int64)
    source, owner = index.neighbours(targets)
    nodes = sorted_unique(np.concatenate([targets, source]))
    first = int(np.searchsorted(nodes, start))
    edges = np.stack([np.searchsorted(nodes, source), first + owner])
    return Piece(
        targets=slice(start, stop),
        rows=slice(first, first + stop - start),
        nodes=torch.from_numpy(nodes),
        edge_index=torch.from_numpy(edges),
    )


def _distinct_below(bounds: Integers, count: int, bits: np.random.PCG64) -> Integers:
    """Draw ``count`` distinct numbers below each bound, ``(count, len(bounds))``.

    Robert Floyd's method, for all bounds at once: every subset is equally likely, and the cost does
    not depend on the bounds, so a hub is as cheap as any node.
    """
    raw = bits.random_raw(count * len(bounds)).reshape(count, len(bounds))
    uniform = (raw >> np.uint64(11)) * 2.0**-53  # in [0, 1)
    chosen = np.empty((count, len(bounds)), np.int64)
    for step in range(count):
        last = bounds - count + step
        draw = (uniform[step] * (last + 1)).astype(np.int64)
        taken = (chosen[:step] == draw).any(axis=0)
        chosen[step] = np.where(taken, last, draw)
    return chosen
