"""Neighbourhoods of about the same size side by side, for sums over edges by dense products.

Edges are sorted by target, so a node's are consecutive. Nodes are ordered by how many they have and
cut into groups whose edges fit into a rectangle, ``(nodes, most)``, with at most a quarter of
it empty: a sum over edges is then a batched product, without a tensor per edge and block, and in
the same order every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

CACHED = 2**19
"""Entries of a piece on the CPU, whose temporaries then stay in its cache."""

BOUNDED = 2**26
"""Entries of a piece elsewhere: a bound on memory, not on the time of a piece."""


class Rectangle(NamedTuple):
    """Some nodes and all their edges.

    Attributes:
        nodes: ``(N,)``, numbered from 0 in the order of the targets.
        place: ``(N, K)``, where each node's edges stand; the first ones again where it has fewer.
        there: ``(N, K)`` bool, which of them are the node's; ``None`` where all are.
    """

    nodes: Tensor
    place: Tensor
    there: Tensor | None

    def of_edges(self, values: Tensor, missing: float = 0.0) -> Tensor:
        """Return values ``(E,)`` of the edges, ``(N, K)``."""
        chosen = values.index_select(0, self.place.view(-1)).view(self.place.shape)
        return chosen if self.there is None else chosen.masked_fill_(~self.there, missing)

    def neighbours(self, source: Tensor, start: int) -> Tensor:
        """Return the sources of the edges, ``(N K,)``; the node itself where there is none."""
        chosen = source.index_select(0, self.place.view(-1))
        if self.there is not None:
            own = (self.nodes + start).unsqueeze(1)
            chosen = torch.where(self.there, chosen.view(self.place.shape), own).view(-1)
        return chosen

    def write(self, values: Tensor, out: Tensor) -> None:
        """Write values ``(N, K)`` to where their edges stand in ``out``, ``(E,)``."""
        if self.there is not None:  # where there is none, its first edge's value once more
            values = torch.where(self.there, values, values[:, :1])
        out.scatter_(0, self.place.view(-1), values.reshape(-1))


EXACT = 8
"""Up to so many edges, nodes share a rectangle with those of the same number alone."""

LENGTHS = (
    *range(1, EXACT + 1),
    *(part * 2**power for power in range(1, 40) for part in (5, 6, 7, 8)),
)
"""Lengths of rows: beyond :data:`EXACT` four for each power of two."""


def rectangles(target: Tensor, num_nodes: int, width: int) -> Iterator[Rectangle]:
    """Yield all nodes that have edges, each once, with its edges.

    Args:
        target: ``(E,)`` ascending, below ``num_nodes``.
        num_nodes: How many targets there are.
        width: Numbers of an edge, by which the size of a rectangle is bounded.
    """
    count = torch.bincount(target, minlength=num_nodes)
    first = count.cumsum(0) - count
    sizes, order = count.sort(stable=True)
    lengths = torch.tensor([0, *LENGTHS]).to(target.device)
    cuts = torch.searchsorted(sizes, lengths, right=True).cpu().tolist()
    entries = CACHED if target.device.type == "cpu" else BOUNDED
    for length, start, stop in zip(LENGTHS, cuts[:-1], cuts[1:], strict=True):
        if start == stop:
            continue
        column = torch.arange(length, device=target.device)
        for nodes in order[start:stop].split(max(1, entries // (length * max(width, 1)))):
            begin = first.index_select(0, nodes).unsqueeze(1)
            if length <= EXACT:
                yield Rectangle(nodes, begin + column, None)
            else:
                there = column < count.index_select(0, nodes).unsqueeze(1)
                yield Rectangle(nodes, torch.where(there, begin + column, begin), there)
