r"""Operators that act inside each graph of a batch, as batched products of dense blocks.

Graphs of similar size are padded to one size and stand in one tensor ``(g, p, ...)``. Above 16 rows
sizes grow by at most a half from one bucket to the next, so padding costs at most a factor of
:math:`1.5^2` where the blocks are square, whatever the largest graph of the batch is. One graph
alone is one bucket without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from geof.methods.interface import GraphInputs


@dataclass(frozen=True, eq=False)
class Bucket:
    """Graphs that are padded to the same size.

    Attributes:
        rows: ``(g, p)``, their nodes; padding repeats row 0.
        real: ``(g, p)`` bool, which places hold a node.
    """

    rows: Tensor
    real: Tensor


@dataclass(frozen=True, eq=False)
class Blocks:
    """The nodes of a batch of graphs (or other rows that belong to graphs), sorted into buckets.

    Attributes:
        buckets: All graphs that have nodes, each once.
        place: ``(n,)``, where each node stands among the places of all buckets.
        local: ``(n,)``, each node's number within its graph.
        sizes: ``(G,)``, nodes per graph.
    """

    buckets: tuple[Bucket, ...]
    place: Tensor
    local: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, inputs: GraphInputs) -> Blocks:
        """Return the buckets of a batch, made once and cached with its edges."""

        def build() -> Blocks:
            batch = inputs.batch
            if batch is None:
                batch = torch.zeros(inputs.x.size(0), dtype=torch.long)
            return cls.sort(batch, inputs.num_graphs)

        return inputs.cached(cls.sort, build)

    @classmethod
    def sort(cls, batch: Tensor, num_graphs: int) -> Blocks:
        """Sort rows by their graphs ``(n,)`` and those by their sizes."""
        nodes = len(batch)
        sizes = torch.bincount(batch, minlength=num_graphs)
        order = torch.argsort(batch, stable=True)
        first = sizes.cumsum(0) - sizes
        local = torch.empty_like(order)
        local[order] = torch.arange(nodes) - torch.repeat_interleave(first, sizes)
        wanted = sizes if num_graphs == 1 else torch.tensor(_padded(sizes.tolist()))
        buckets, place, begin = [], torch.empty_like(order), 0
        for size in wanted.unique().tolist():
            if size == 0:
                continue
            graphs = (wanted == size).nonzero().squeeze(1)
            real = torch.arange(size) < sizes[graphs, None]
            members = torch.where(real, first[graphs, None] + torch.arange(size), 0)
            chosen = torch.where(real, order[members], 0)
            place[chosen[real]] = begin + real.view(-1).nonzero().squeeze(1)
            buckets.append(Bucket(chosen, real))
            begin += real.numel()
        return cls(tuple(buckets), place, local, sizes)

    def split(self, x: Tensor) -> list[Tensor]:
        """Return the rows of ``x`` as ``(g, p, d)`` for every bucket; padding is not zero."""
        if len(self.sizes) == 1:
            return [x.unsqueeze(0) for _ in self.buckets]
        return [
            x.index_select(0, bucket.rows.view(-1)).view(*bucket.rows.shape, -1)
            for bucket in self.buckets
        ]

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return the rows ``(n, d)`` of what :meth:`split` made, without the padding."""
        if len(self.sizes) == 1:
            return pieces[0].squeeze(0)
        return torch.cat([piece.flatten(0, 1) for piece in pieces]).index_select(0, self.place)


def _padded(sizes: Sequence[int]) -> list[int]:
    """Return the least of 0, 16, 24, 32, 48, 64, 96, ... that each size fits into.

    >>> _padded([0, 1, 17, 32, 33, 620])
    [0, 16, 24, 32, 48, 768]
    """
    steps = [0, 16]
    while steps[-1] < max(sizes, default=0):
        steps += [3 * steps[-1] // 2, 2 * steps[-1]]
    return [next(step for step in steps if step >= size) for size in sizes]
