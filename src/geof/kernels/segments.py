"""Neighbourhoods of about the same size side by side, for sums over edges by dense products.

Edges are sorted by target, so a node's are consecutive. Nodes are ordered by how many they have and
cut into groups whose edges fit into a rectangle, ``(nodes, most)``, with at most a quarter of
it empty: a sum over edges is then a batched product, without a tensor per edge and block, and in
the same order every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

CACHED = 2**19
"""Entries of a piece on the CPU, whose temporaries then stay in its cache."""

SHARED = 2**20
"""Likewise for several threads, each of which has a part of the piece in a cache of its own."""

BOUNDED = 2**26
"""Entries of a piece elsewhere: a bound on memory, not on the time of a piece."""


KEPT = 2**22
"""Up to so many edges, how they are grouped is kept as long as they are: some 17 bytes for each."""


class Rectangle(NamedTuple):
    """Some nodes and all their edges.

    Attributes:
        nodes: ``(N,)``, numbered from 0 in the order of the targets.
        neighbours: ``(N K,)``, the sources of the edges; the node itself where there is none.
        place: ``(N, K)``, where each node's edges stand; the first ones again where it has fewer.
        there: ``(N, K)`` bool, which of them are the node's; ``None`` where all are.
    """

    nodes: Tensor
    neighbours: Tensor
    place: Tensor
    there: Tensor | None

    def of_edges(self, values: Tensor, missing: float = 0.0) -> Tensor:
        """Return values ``(E,)`` of the edges, ``(N, K)``."""
        chosen = values.index_select(0, self.place.view(-1)).view(self.place.shape)
        return chosen if self.there is None else chosen.masked_fill_(~self.there, missing)

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


_kept = WeakIdKeyDictionary()
"""What :func:`rectangles` made, by the targets: a step asks for it twice, and so do the others."""


def rectangles(source: Tensor, target: Tensor, nodes: range, width: int) -> Iterable[Rectangle]:
    """Return all nodes that have edges, each once, with its edges.

    Args:
        source: ``(E,)``.
        target: ``(E,)`` ascending.
        nodes: The targets.
        width: Numbers of an edge, by which the size of a rectangle is bounded.
    """
    unversioned = source.is_inference() or target.is_inference()
    if len(target) > KEPT or unversioned or torch.compiler.is_compiling():
        return _rectangles(source, target, nodes, width)
    asked = source._version, target._version, nodes, width, _entries(target)
    of, under, found = _kept.get(target, (lambda: None, None, []))
    if of() is not source or under != asked:
        with torch.inference_mode(False):  # what is kept may serve a training after this
            found = list(_rectangles(source, target, nodes, width))
        _kept[target] = ref(source), asked, found
    made: list[Rectangle] = found
    return made


def _rectangles(source: Tensor, target: Tensor, nodes: range, width: int) -> Iterator[Rectangle]:
    target, num_nodes = target - nodes.start if nodes.start else target, len(nodes)
    count = torch.bincount(target, minlength=num_nodes)
    first = count.cumsum(0) - count
    sizes, order = count.sort(stable=True)
    lengths = torch.tensor([0, *LENGTHS]).to(target.device)
    cuts = torch.searchsorted(sizes, lengths, right=True).cpu().tolist()
    entries = _entries(target)
    for length, start, stop in zip(LENGTHS, cuts[:-1], cuts[1:], strict=True):
        if start == stop:
            continue
        column = torch.arange(length, device=target.device)
        for chosen in order[start:stop].split(max(1, entries // (length * max(width, 1)))):
            begin = first.index_select(0, chosen).unsqueeze(1)
            place = begin + column
            if length <= EXACT:
                yield Rectangle(chosen, source.index_select(0, place.view(-1)), place, None)
                continue
            there = column < count.index_select(0, chosen).unsqueeze(1)
            place = torch.where(there, place, begin)
            neighbours = source.index_select(0, place.view(-1)).view(place.shape)
            own = (chosen + nodes.start).unsqueeze(1)
            yield Rectangle(chosen, torch.where(there, neighbours, own).view(-1), place, there)


def _entries(target: Tensor) -> int:
    on_cpu = CACHED if torch.get_num_threads() == 1 else SHARED
    return on_cpu if target.device.type == "cpu" else BOUNDED
